"""The Docker backend beyond the conformance kit, with an engine: spares, leftovers, deaths."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kernelevo_sandbox import (
    DockerOptions,
    DockerSandbox,
    EndKind,
    Limits,
    SandboxBroken,
    SandboxSpec,
    SandboxUnavailable,
    interpreter_mounts,
    owners,
)
from kernelevo_sandbox.conformance import Kit
from kernelevo_sandbox.docker.backend import BACKEND_LABEL, DEADLINE_LABEL, LEASE_LABEL
from kernelevo_sandbox.docker.configuration import Shape, configuration
from kernelevo_sandbox.docker.engine import DEFAULT_HOST, IMAGE_LABEL
from kernelevo_sandbox.supervision import SupervisedProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

live = pytest.mark.usefixtures("docker_engine")


def client() -> Any:
    import docker

    return docker.APIClient(base_url=os.environ.get("DOCKER_HOST") or DEFAULT_HOST, version="auto", timeout=30)


@contextlib.contextmanager
def asked() -> Any:
    """The engine, asked by the test itself."""
    api = client()
    try:
        yield api
    finally:
        api.close()


def containers(api: Any, label: str = LEASE_LABEL) -> list[dict[str, Any]]:
    return list(api.containers(all=True, filters={"label": [label]}))


@pytest.fixture
async def kit(docker_engine: None) -> AsyncIterator[Kit]:
    sandbox = DockerSandbox()
    try:
        yield Kit(sandbox=sandbox, mounts=interpreter_mounts())
    finally:
        await sandbox.close()


async def test_spares_are_used_once_and_only_by_their_own_shape(kit: Kit) -> None:
    names = []
    for tmpfs in (1 << 20, 1 << 20, 1 << 20, 2 << 20):
        code = "print(os.listdir('/tmp'), file=open('/tmp/mine', 'w'))\nprint(json.dumps(os.getuid()))"
        names.append(await kit.report(code, tmpfs_bytes=tmpfs))
        await asyncio.sleep(0.5)
    assert len(set(names)) == 4  # a uid for each
    with asked() as api:
        # The shape that came again has one ready; the one that came once has none.
        assert len(containers(api)) == 1
    began = time.monotonic()
    process = await kit.sandbox.start(kit.spec("import time; time.sleep(60)", tmpfs_bytes=1 << 20))
    warm = time.monotonic() - began
    await process.kill()
    began = time.monotonic()
    process = await kit.sandbox.start(kit.spec("import time; time.sleep(60)", tmpfs_bytes=3 << 20))
    cold = time.monotonic() - began
    await process.kill()
    assert warm < cold / 2, (warm, cold)


async def test_a_spare_that_died_is_replaced(kit: Kit) -> None:
    for _ in range(2):
        await kit.run("pass")
    await asyncio.sleep(0.7)
    with asked() as api:
        (spare,) = containers(api)
        api.kill(spare["Id"])
    await asyncio.sleep(0.3)
    assert (await kit.run("print(1)")).exit_code == 0


async def test_nothing_is_left_at_the_end(docker_engine: None) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    sandbox = DockerSandbox()
    kit = Kit(sandbox=sandbox, mounts=interpreter_mounts())
    await asyncio.gather(*(kit.run("print(1)") for _ in range(3)))
    await kit.run("print(1)")
    running = await sandbox.start(kit.spec("import time; time.sleep(600)"))
    await running.freeze()
    await sandbox.close()
    assert running.ended
    with asked() as api:
        assert containers(api) == []
    assert list(Path(tempfile.gettempdir()).glob(f"kernelevo-docker-{owners.mark()}*")) == []
    await asyncio.sleep(0.1)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1  # the loop's selector may be new


async def test_what_a_container_shows(kit: Kit) -> None:
    found = await kit.report(
        "def opened(path, flags=os.O_RDONLY):\n"
        "    try: os.close(os.open(path, flags)); return True\n"
        "    except OSError: return False\n"
        "mounts = {l.split()[4]: l.split()[5].split(',')[0] for l in open('/proc/self/mountinfo')}\n"
        "folders = [f for top in ('/', '/etc', '/dev', '/sys', '/proc') for f, _, _ in os.walk(top) if f.count('/') < 4]\n"
        "def writable(folder):\n"
        "    try: os.close(os.open(folder, os.O_TMPFILE | os.O_RDWR)); return True\n"
        "    except OSError: return False\n"
        "print(json.dumps({\n"
        "    'first': [p for p in ('mem', 'environ', 'maps', 'fd/0') if opened('/proc/1/' + p)],\n"
        "    'box': os.listdir('/.sandbox'), 'root': mounts['/'], 'sys': os.listdir('/sys'),\n"
        "    'writable': sorted(set(filter(writable, folders))),\n"
        "    'resolv': open('/etc/resolv.conf').read(), 'socket': os.path.exists('/var/run/docker.sock'),\n"
        "    'engine': [e for e in os.environ if 'KERNELEVO' in e or 'DOCKER' in e]}))"
    )
    assert found == {
        "first": [],
        "box": ["launcher.py"],
        "root": "ro",
        "sys": ["devices"],
        "writable": ["/dev/shm", "/tmp"],
        "resolv": "",
        "socket": False,
        "engine": [],
    }


async def test_a_flood_whose_reader_stalls_is_killed_at_once(kit: Kit) -> None:
    code = "import os\nwhile True: os.write(1, b'x' * 65536)"
    process = await kit.sandbox.start(kit.spec(code, output_bytes=1 << 40))
    await asyncio.sleep(0.2)
    time.sleep(1.0)
    began = time.monotonic()
    assert (await process.kill()).kind is EndKind.KILLED
    assert time.monotonic() - began < 1.0


async def test_a_container_that_somebody_else_killed_is_our_fault(kit: Kit) -> None:
    process = await kit.sandbox.start(kit.spec("import time; time.sleep(600)"))
    with asked() as api:
        (mine,) = containers(api)
        api.kill(mine["Id"])
    with pytest.raises(SandboxBroken, match="signal 9"):
        await process.wait()
    assert (await kit.run("print(1)")).exit_code == 0


async def test_memory_counts_temporary_files(kit: Kit) -> None:
    code = "import os\nwith open('/tmp/f', 'wb', buffering=0) as f:\n    while True: f.write(b'x' * 65536)"
    ending = await kit.run(code, memory_bytes=64 << 20, tmpfs_bytes=1 << 30, file_size_bytes=1 << 30)
    assert ending.kind is EndKind.OUT_OF_MEMORY, ending


async def test_only_the_image_has_the_system(kit: Kit) -> None:
    """A spec without mounts sees the image and nothing of the host."""
    spec = SandboxSpec(argv=("/usr/bin/python3", "-c", "print(1)"), env={}, limits=Limits(memory_bytes=128 << 20))
    assert (await (await kit.sandbox.start(spec)).wait()).stdout.text() == "1\n"


async def test_the_program_filter_is_loaded_over_the_engines(kit: Kit) -> None:
    """What a profile cannot say holds too: numbers beyond every known call."""
    if os.uname().machine != "x86_64":
        pytest.skip("numbers of x86-64")
    found = await kit.report(
        "import ctypes\nc = ctypes.CDLL(None, use_errno=True)\n"
        "calls = {'bpf': 321, 'clone3': 435, 'beyond': 999}\n"
        "print(json.dumps({n: (c.syscall(k, 0, 0, 0, 0, 0), ctypes.get_errno())[1] for n, k in calls.items()}))"
    )
    assert found == {"bpf": errno.EPERM, "clone3": errno.ENOSYS, "beyond": errno.ENOSYS}
    ending = await kit.run("import ctypes; ctypes.CDLL(None).syscall(0x40000000 + 39)")  # getpid by x32's numbers
    assert ending.kind is EndKind.FORBIDDEN_CALL, ending


async def test_a_device_is_passed_and_no_other(kit: Kit) -> None:
    spec = replace(
        kit.spec("import json, os\nprint(json.dumps([os.path.exists('/dev/tty0'), os.path.exists('/sys/bus')]))"),
        devices=(Path("/dev/tty"),),
    )
    ending = await (await kit.sandbox.start(spec)).wait()
    assert json.loads(ending.stdout.text()) == [False, True], ending


async def test_an_image_that_cannot_run_says_why(docker_engine: None) -> None:
    with asked() as api:
        changes = [f"LABEL {IMAGE_LABEL}=1"]
        api.import_image_from_data(_empty_archive(), repository="kernelevo-empty", tag="latest", changes=changes)
        sandbox = DockerSandbox(DockerOptions(image="kernelevo-empty"))
        try:
            with pytest.raises(SandboxBroken, match="python3"):
                await sandbox.start(Kit(sandbox=sandbox).spec(""))
        finally:
            await sandbox.close()
            api.remove_image("kernelevo-empty")
        assert containers(api) == []
    missing = DockerSandbox(DockerOptions(image="kernelevo-nowhere"))
    try:
        with pytest.raises(SandboxUnavailable, match="docker build"):
            await missing.sweep()
    finally:
        await missing.close()


def _empty_archive() -> bytes:
    import tarfile

    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name in ("etc", "tmp", "proc", "dev", "sys"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(folder)
    return archive.getvalue()


_EVALUATOR = """
import asyncio, json, os, signal, sys
from kernelevo_sandbox import *
async def main():
    sandbox = open_sandbox("docker")
    spec = SandboxSpec(argv=("/bin/sleep", "600"), env={}, limits=Limits(memory_bytes=64 << 20))
    process = await sandbox.start(spec)
    frozen = await sandbox.start(spec)
    await frozen.freeze()
    print(json.dumps([process.pid, frozen.pid, sandbox._launcher._process.pid]), flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except FileNotFoundError:
        return False
    return stat.rpartition(b") ")[2][:1] not in (b"Z", b"X")


@live
@pytest.mark.parametrize("launcher_too", [False, True])
async def test_nothing_survives_a_killed_evaluator(launcher_too: bool) -> None:
    path = os.pathsep.join([str(Path(owners.__file__).parent.parent), *sys.path])
    evaluator = subprocess.Popen(
        [sys.executable, "-c", _EVALUATOR], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    )
    with evaluator, asked() as api:
        assert evaluator.stdout is not None
        running, frozen, launcher = json.loads(await asyncio.to_thread(evaluator.stdout.readline))
        assert alive(running) and alive(frozen)
        sandbox = DockerSandbox()
        try:
            # While it lives, its containers are nobody else's to remove.
            held = {one["Id"] for one in containers(api)}
            await sandbox.sweep()
            assert held <= {one["Id"] for one in containers(api)} and len(held) >= 2
            if launcher_too:
                os.kill(launcher, signal.SIGKILL)  # nobody is left to thaw the frozen one but the sweep
            evaluator.kill()
            evaluator.wait()
            await gone(running)
            if not launcher_too:
                await gone(frozen)
            assert await sandbox.sweep() >= 3  # the containers and the folder
            await gone(frozen)
            # What the engine was still creating when its client died comes into being after all.
            deadline = time.monotonic() + 10
            while await sandbox.sweep() or containers(api):
                assert time.monotonic() < deadline
                await asyncio.sleep(0.1)
        finally:
            evaluator.kill()
            await sandbox.close()


async def gone(pid: int) -> None:
    deadline = time.monotonic() + 10
    while alive(pid):
        assert time.monotonic() < deadline, "a process outlived the evaluator"
        await asyncio.sleep(0.02)


async def test_leases_of_unknown_owners_end(kit: Kit) -> None:
    """An owner in another pid namespace cannot be looked up: its containers stay until their deadline, and no longer."""
    await kit.run("pass")
    with asked() as api:
        made = []
        for deadline in (time.time() + 600, time.time() - 1):
            labels = {BACKEND_LABEL: "other", LEASE_LABEL: "n1-p1-t1", DEADLINE_LABEL: str(int(deadline))}
            config = configuration(
                Shape(
                    memory_bytes=1 << 28, processes=8, tmpfs_bytes=1 << 20, mounts=(), devices=(), cpus=frozenset({0})
                ),
                image="kernelevo-sandbox",
                uid=4242,
                box=Path("/usr"),
                etc={},
                labels=labels,
                runtime=None,
                gpus={},
            )
            made.append(api.create_container_from_config(config)["Id"])
        assert await kit.sandbox.sweep() == 1
        assert [one["Id"] for one in containers(api) if one["Id"] in made] == made[:1]
        api.remove_container(made[0])


async def test_backends_of_one_process_leave_each_other_alone(kit: Kit) -> None:
    process = await kit.sandbox.start(kit.spec("import time; time.sleep(600)"))
    other = DockerSandbox()
    await other.sweep()
    await other.close()
    assert isinstance(process, SupervisedProcess) and alive(process.pid) and not process.ended
    await process.kill()
