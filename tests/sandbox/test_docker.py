"""The Docker backend beyond the conformance kit: what the engine is told, what is refused, spares, leftovers, deaths."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import json
import os
import signal
import socket
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
    GpuAccess,
    Limits,
    Mount,
    SandboxBroken,
    SandboxSpec,
    SandboxUnavailable,
    interpreter_mounts,
    owners,
    seccomp,
)
from kernelevo_sandbox.conformance import Kit
from kernelevo_sandbox.docker.backend import BACKEND_LABEL, DEADLINE_LABEL, LEASE_LABEL
from kernelevo_sandbox.docker.configuration import Shape, configuration
from kernelevo_sandbox.docker.engine import DEFAULT_HOST, IMAGE_LABEL, engine_refusal, image_refusal
from kernelevo_sandbox.docker.gpus import gpu_request, toolkit_refusal
from kernelevo_sandbox.mounts import needed
from kernelevo_sandbox.supervision import SupervisedProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

live = pytest.mark.usefixtures("docker_engine")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="the docker backend runs as root")

SHAPE = Shape(memory_bytes=1 << 28, processes=8, tmpfs_bytes=1 << 20, mounts=(), devices=(), cpus=frozenset({0, 1}))


def body(shape: Shape = SHAPE, **changes: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "image": "sha256:0",
        "uid": 4242,
        "box": Path("/private/box"),
        "etc": {"passwd": Path("/private/etc/passwd")},
        "labels": {"a": "b"},
        "runtime": None,
        "gpus": {},
    }
    return configuration(shape, **{**given, **changes})


# What the engine is told.


def test_a_container_is_given_nothing_that_it_does_not_need() -> None:
    told = body()
    host = told["HostConfig"]
    assert (told["User"], told["NetworkDisabled"], host["NetworkMode"]) == ("4242:4242", True, "none")
    assert host["ReadonlyRootfs"] and not host["Privileged"]
    assert host["CapDrop"] == ["ALL"] and "CapAdd" not in host
    assert host["Memory"] == host["MemorySwap"] == 1 << 28
    assert host["PidsLimit"] == 9
    assert host["CpusetCpus"] == "0,1"
    assert host["ShmSize"] == 1 << 20 and "size=1048576" in host["Tmpfs"]["/tmp"]
    assert (host["IpcMode"], host["CgroupnsMode"]) == ("private", "private")
    assert "no-new-privileges:true" in host["SecurityOpt"]
    (profile,) = [option.removeprefix("seccomp=") for option in host["SecurityOpt"] if option.startswith("seccomp=")]
    assert json.loads(profile) == seccomp.profile()
    assert all(mount["ReadOnly"] and mount["BindOptions"]["NonRecursive"] for mount in host["Mounts"])
    assert not any("docker.sock" in mount["Source"] for mount in host["Mounts"])
    assert not any(told[stream] for stream in ("Tty", "OpenStdin", "AttachStdin", "AttachStdout", "AttachStderr"))
    assert "Runtime" not in host and body(runtime="runsc")["HostConfig"]["Runtime"] == "runsc"
    assert "CpusetCpus" not in body(replace(SHAPE, cpus=None))["HostConfig"]


def test_sysfs_is_closed_unless_a_device_needs_it() -> None:
    assert "/sys" in body()["HostConfig"]["Tmpfs"]
    assert "/sys" not in body(replace(SHAPE, devices=(Path("/dev/tty"),)))["HostConfig"]["Tmpfs"]


def test_mounts_that_show_already_are_not_mounted_again() -> None:
    outer, inner = Mount(source=Path("/a"), target="/x"), Mount(source=Path("/a/b"), target="/x/b")
    other = Mount(source=Path("/c"), target="/x/c")
    assert needed((inner, other, outer, outer), {}) == [outer, other]
    assert needed((Mount(source=Path("/usr/lib"), target="/usr/lib"),), {"/usr": Path("/usr")}) == []


def _driver(folder: Path) -> Path:
    for bus, minor, uuid in (("0000:01:00.0", 1, "GPU-one"), ("0000:02:00.0", 0, "GPU-zero")):
        (folder / bus).mkdir(parents=True)
        (folder / bus / "information").write_text(f"Model: \t H200\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n")
    return folder


def test_gpus(tmp_path: Path) -> None:
    driver = _driver(tmp_path)
    nodes = tuple(Path("/dev") / name for name in ("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"))
    plain = {"PathOnHost": "/dev/tty", "PathInContainer": "/dev/tty", "CgroupPermissions": "rw"}
    assert gpu_request((Path("/dev/tty"), *nodes), GpuAccess.CDI, driver) == {
        "Devices": [plain],
        "DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=GPU-zero"]}],
    }
    assert gpu_request(nodes, GpuAccess.TOOLKIT, driver) == {
        "Devices": [],
        "DeviceRequests": [
            {"Driver": "nvidia", "DeviceIDs": ["GPU-zero"], "Capabilities": [["gpu", "compute", "utility"]]}
        ],
    }
    bare = gpu_request(nodes, GpuAccess.NODES, driver)
    assert [device["PathOnHost"] for device in bare["Devices"]] == [str(node) for node in nodes]
    assert "DeviceRequests" not in bare
    with pytest.raises(SandboxUnavailable, match="nvidia7"):
        gpu_request((Path("/dev/nvidia7"),), GpuAccess.CDI, driver)
    part = (*nodes, Path("/dev/nvidia-caps/nvidia-cap3"))
    assert len(gpu_request(part, GpuAccess.NODES, driver)["Devices"]) == 5
    for access in (GpuAccess.CDI, GpuAccess.TOOLKIT):  # which would bring the whole GPU
        with pytest.raises(SandboxUnavailable, match="docker_gpu = nodes"):
            gpu_request(part, access, driver)
    # An image that asks for all GPUs gets none, unless some are given.
    assert "NVIDIA_VISIBLE_DEVICES=void" in body()["Env"]
    assert not any("NVIDIA" in entry for entry in body(gpus=gpu_request(nodes, GpuAccess.TOOLKIT, driver))["Env"])


@pytest.mark.parametrize(
    ("says", "refused"),
    [
        ("NVIDIA Container Toolkit CLI version 1.17.7\n", "1.17.7"),
        ("NVIDIA Container Toolkit CLI version 1.17.8\ncommit: x\n", None),
        ("NVIDIA Container Toolkit CLI version 1.18.0-rc.2\n", None),
        ("something else\n", "no known version"),
    ],
)
def test_old_toolkits_are_refused(says: str, refused: str | None, tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-ctk"
    tool.write_text(f"#!/bin/sh\nprintf '%s' '{says}'\n")
    tool.chmod(0o755)
    found = toolkit_refusal(str(tool))
    assert found is None if refused is None else found is not None and refused in found
    missing = toolkit_refusal(str(tmp_path / "nothing"))
    assert missing is not None and "missing" in missing


FIT = {"OSType": "linux", "SecurityOptions": ["name=seccomp,profile=default"], "Runtimes": {"runc": {}}}


@pytest.mark.parametrize(
    ("info", "api", "runtime", "said"),
    [
        (FIT, "1.41", None, None),
        (FIT, "1.41", "runc", None),
        (FIT, "1.9", None, "1.41"),
        (FIT, "1.41", "runsc", "no runtime runsc: it has runc"),
        (FIT | {"OSType": "windows"}, "1.47", None, "windows"),
        (FIT | {"SecurityOptions": []}, "1.47", None, "no seccomp"),
        (FIT | {"SecurityOptions": ["name=seccomp", "name=rootless"]}, "1.47", None, "rootless"),
    ],
)
def test_engines_that_do_not_isolate_are_refused(info: Any, api: str, runtime: str | None, said: str | None) -> None:
    refusal = engine_refusal(info, api, runtime)
    assert refusal is None if said is None else refusal is not None and said in refusal


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"Labels": {IMAGE_LABEL: "1"}, "Env": ["PATH=/usr/bin", "LD_LIBRARY_PATH=/x"]}, None),
        ({"Labels": None}, "no sandbox image"),
        ({"Labels": {IMAGE_LABEL: "1"}, "Volumes": {"/data": {}}}, "volumes"),
        ({"Labels": {IMAGE_LABEL: "1"}, "Env": ["LD_PRELOAD=/x.so"]}, "LD_PRELOAD"),
    ],
)
def test_images_of_others_are_refused(config: Any, said: str | None) -> None:
    refusal = image_refusal("some", config)
    assert refusal is None if said is None else refusal is not None and said in refusal


@needs_root
async def test_what_cannot_be_is_said(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailable, match="on this host"):
        DockerSandbox(DockerOptions(host="tcp://elsewhere:2375"))
    sandbox = DockerSandbox(DockerOptions(host=f"unix://{tmp_path}/nothing"))
    try:
        with pytest.raises(SandboxUnavailable, match="no Docker engine answers"):
            await sandbox.start(Kit(sandbox=sandbox).spec(""))
    finally:
        await sandbox.close()


@needs_root
async def test_a_silent_engine_holds_nobody_up() -> None:
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{folder}/s")
        server.listen()
        sandbox = DockerSandbox(DockerOptions(host=f"unix://{folder}/s", call_seconds=0.3))
        began = time.monotonic()
        try:
            with pytest.raises(SandboxUnavailable):
                await sandbox.start(Kit(sandbox=sandbox).spec(""))
        finally:
            await sandbox.close()
        assert time.monotonic() - began < 3.0


# With an engine.


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
            config = body(image="kernelevo-sandbox", labels=labels, box=Path("/usr"), etc={})
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
