"""What outlives whom: sweeping, a killed evaluator, a killed launcher, spares, and what a start refuses."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kernelevo_sandbox import (
    BubblewrapSandbox,
    EndKind,
    Limits,
    Mount,
    NoSandbox,
    SandboxBroken,
    SandboxSpec,
    SandboxUnavailable,
    cgroups,
    interpreter_mounts,
    open_sandbox,
    owners,
)
from kernelevo_sandbox.bubblewrap import readable_by_others
from kernelevo_sandbox.conformance import Kit
from kernelevo_sandbox.gpu import nvidia_devices
from kernelevo_sandbox.supervision import SupervisedProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def kit() -> AsyncIterator[Kit]:
    sandbox = BubblewrapSandbox()
    try:
        yield Kit(sandbox=sandbox, mounts=interpreter_mounts())
    finally:
        await sandbox.close()


@pytest.fixture(params=["bubblewrap", "docker"])
async def either(request: pytest.FixtureRequest) -> AsyncIterator[Kit]:
    """Each backend that isolates."""
    if request.param == "docker":
        request.getfixturevalue("docker_engine")
    sandbox = open_sandbox(request.param)
    try:
        yield Kit(sandbox=sandbox, mounts=interpreter_mounts())
    finally:
        await sandbox.close()


def groups_of(pid: int) -> list[Path]:
    places = Path("/sys/fs/cgroup").rglob(f"kernelevo-n*-p{pid}-t*") if Path("/sys/fs/cgroup").exists() else []
    return list(places)


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except FileNotFoundError:
        return False
    return stat.rpartition(b") ")[2][:1] not in (b"Z", b"X")


_EVALUATOR = """
import asyncio, json, sys
from kernelevo_sandbox import *
async def main():
    sandbox = open_sandbox(sys.argv[1])
    spec = SandboxSpec(argv=("/bin/sleep", "600"), env={}, limits=Limits(memory_bytes=64 << 20))
    process = await sandbox.start(spec)
    frozen = await sandbox.start(spec)
    await frozen.freeze()
    print(json.dumps([p.init_pid or p.pid for p in (process, frozen)]), flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


@pytest.mark.parametrize("backend", ["bubblewrap", "none"])
async def test_nothing_survives_a_killed_evaluator(backend: str) -> None:
    path = str(Path(cgroups.__file__).parent.parent)
    evaluator = subprocess.Popen(
        [sys.executable, "-c", _EVALUATOR, backend],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
    with evaluator:
        assert evaluator.stdout is not None
        pids = json.loads(await asyncio.to_thread(evaluator.stdout.readline))
        assert all(map(alive, pids))
        sandbox = BubblewrapSandbox()
        if backend == "bubblewrap" and sandbox.layout.version is not None:
            # While it lives, its groups are nobody else's to remove.
            held = set(groups_of(evaluator.pid))
            assert held
            await sandbox.sweep()
            assert held <= set(groups_of(evaluator.pid))  # its spare may join them meanwhile
        evaluator.kill()
        evaluator.wait()
        deadline = time.monotonic() + 10
        while any(map(alive, pids)):
            assert time.monotonic() < deadline, "processes outlived the evaluator"
            await asyncio.sleep(0.02)
        # Its spare may be dying still, and what other dead evaluators of this host left is swept as well.
        while groups_of(evaluator.pid):
            assert time.monotonic() < deadline, "control groups outlived the evaluator"
            await sandbox.sweep()
        await sandbox.close()


async def test_temporary_files_go_with_a_process_that_nothing_isolates(tmp_path: Path) -> None:
    """However it ends; where its owner was killed, whoever sweeps later removes them."""
    code = "import os, tempfile, time; print(tempfile.mkdtemp(), flush=True); time.sleep({})"

    def spec(seconds: int) -> SandboxSpec:
        return SandboxSpec(
            argv=(sys.executable, "-I", "-S", "-c", code.format(seconds)),
            env={"TMPDIR": "/tmp"},
            limits=Limits(memory_bytes=256 << 20),
        )

    sandbox = NoSandbox()
    try:
        killed = await sandbox.start(spec(600))
        while not (said := killed.output()[0].text()):
            await asyncio.sleep(0.01)
        inside = Path(said.strip())
        assert inside.is_dir() and owners.mark() in str(inside.parent)
        await killed.kill()
        await (await sandbox.start(spec(0))).wait()
        assert not list(Path("/tmp").glob(f"kernelevo-none-{owners.mark()}-*"))
        dead = re.sub(r"t\d+$", "t1", owners.mark())
        left = Path("/tmp") / f"kernelevo-none-{dead}-x"
        left.mkdir()
        mine = Path("/tmp") / f"kernelevo-none-{owners.mark()}-x"
        mine.mkdir()
        assert await sandbox.sweep() >= 1
        assert not left.exists() and mine.exists()
        mine.rmdir()
    finally:
        await sandbox.close()


async def test_a_killed_launcher_is_our_fault_and_replaced(kit: Kit) -> None:
    process = await kit.sandbox.start(kit.spec("import time; time.sleep(600)"))
    assert isinstance(process, SupervisedProcess)
    init = process.init_pid
    launcher = int(Path(f"/proc/{process.pid}/stat").read_bytes().rpartition(b") ")[2].split()[1])
    os.kill(launcher, signal.SIGKILL)
    with pytest.raises(SandboxBroken, match="launcher died"):
        await process.wait()
    assert init is not None and not alive(init)
    assert (await kit.run("print(1)")).exit_code == 0


async def test_a_killed_monitor_is_our_fault(kit: Kit) -> None:
    process = await kit.sandbox.start(kit.spec("import time; time.sleep(600)"))
    assert isinstance(process, SupervisedProcess)
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(SandboxBroken, match="signal 9"):
        await process.wait()
    assert process.init_pid is not None and not alive(process.init_pid)


async def test_control_groups_are_gone_after_the_end(kit: Kit) -> None:
    others = set(groups_of(os.getpid()))  # of sandboxes that other tests keep warm in this process
    await asyncio.gather(*(kit.run("print(1)") for _ in range(3)))
    await kit.sandbox.close()
    assert set(groups_of(os.getpid())) <= others


async def test_descriptors_do_not_leak(either: Kit) -> None:
    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    for _ in range(3):  # a spare may stand for each of two shapes after these
        await either.run("print(1)")
    await asyncio.sleep(1.0)
    before = count()
    for _ in range(20):
        await either.run("print(1)")
        process = await either.sandbox.start(either.spec("import time; time.sleep(60)"))
        await process.kill()
    # A leak is of forty sandboxes; a spare that is being made holds a few, and an engine's client keeps some 25 connections.
    deadline = time.monotonic() + 10
    while count() > before + 32:
        assert time.monotonic() < deadline, f"{count()} descriptors, {before} before"
        await asyncio.sleep(0.1)


async def test_uids_are_distinct_and_given_back(either: Kit) -> None:
    if os.geteuid() != 0:
        pytest.skip("an ordinary user has one uid")
    other = Kit(sandbox=BubblewrapSandbox(), mounts=interpreter_mounts())
    try:
        code = "import os; print(os.getuid())"
        endings = await asyncio.gather(*(each.run(code) for each in (either, other) for _ in range(4)))
        uids = {int(ending.stdout.text()) for ending in endings}
        assert len(uids) == 8 and min(uids) > 100_000
    finally:
        await other.sandbox.close()


async def test_a_start_refuses_what_cannot_be(either: Kit) -> None:
    spec = either.spec("pass")
    for wrong in (
        replace(spec, argv=()),
        replace(spec, argv=("python3",)),
        replace(spec, label="No Good"),
        replace(spec, fds={1: 0}),
        replace(spec, env={"A": "b\0c"}),
        replace(spec, mounts=(Mount(source=Path("/nowhere/at/all"), target="/x"),)),
        replace(spec, mounts=(Mount(source=Path("/usr"), target="relative"),)),
    ):
        with pytest.raises(SandboxBroken):
            await either.sandbox.start(wrong)
    assert (await either.run("print(1)")).exit_code == 0


async def test_mounts_nest(either: Kit, tmp_path: Path) -> None:
    (tmp_path / "outer" / "inner").mkdir(parents=True)
    (tmp_path / "outer" / "inner" / "file").write_text("outer")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("other")
    for place in (tmp_path, *tmp_path.parents):
        if str(place).startswith("/tmp/pytest"):
            place.chmod(place.stat().st_mode | 0o055)
    outer = Mount(source=tmp_path / "outer", target="/data/outer")
    code = "print(json.dumps([open(p + '/file').read() for p in ('/data/outer/inner', '/data/single')]))"
    mounts = (
        Mount(source=tmp_path / "other", target="/data/outer/inner"),
        Mount(source=tmp_path / "other" / "file", target="/data/single/file"),
        outer,
        Mount(source=tmp_path / "outer", target=str(tmp_path / "outer")),
        Mount(source=tmp_path / "outer" / "inner", target=str(tmp_path / "outer" / "inner")),
    )
    assert await either.report(code, mounts=mounts) == ["other", "other"]


async def test_what_a_program_needs_of_a_system(either: Kit) -> None:
    code = (
        "import pwd, socket, multiprocessing\n"
        "lock = multiprocessing.Lock()\n"  # a POSIX semaphore in /dev/shm
        "open('/dev/null', 'w').write('x'); os.urandom(4); open('/proc/cpuinfo').read()\n"
        "print(json.dumps([pwd.getpwuid(os.getuid()).pw_name, socket.gethostname(), os.getcwd()]))"
    )
    assert await either.report(code) == ["sandbox", "sandbox", "/tmp"]


async def test_a_compiler_runs(either: Kit) -> None:
    if not Path("/usr/bin/g++").exists():
        pytest.skip("no g++")
    script = "cd /tmp && echo 'int main() { return 42; }' > a.cpp && g++ -O1 -o a a.cpp && ./a"
    spec = SandboxSpec(
        argv=("/bin/sh", "-c", script),
        env={"PATH": "/usr/bin:/bin", "TMPDIR": "/tmp"},
        limits=Limits(memory_bytes=512 << 20, wall_seconds=60),
    )
    ending = await (await either.sandbox.start(spec)).wait()
    assert (ending.kind, ending.exit_code) == (EndKind.EXITED, 42), ending


@pytest.mark.parametrize(("name", "isolates"), [("bubblewrap", True), ("docker", True), ("none", False)])
async def test_probe_tells_the_backends_apart(name: str, isolates: bool, request: pytest.FixtureRequest) -> None:
    if name == "docker":
        request.getfixturevalue("docker_engine")
    sandbox = open_sandbox(name)
    try:
        found = {guarantee.name: guarantee for guarantee in await sandbox.probe()}
    finally:
        await sandbox.close()
    assert all(guarantee.evidence for guarantee in found.values())
    missing = [guarantee for guarantee in found.values() if guarantee.essential and not guarantee.holds]
    assert all(guarantee.remedy for guarantee in missing)
    assert (not missing) is isolates, missing
    for always in ("memory_limit", "output_limit", "freeze", "tree_death", "wall_limit"):
        assert found[always].holds, found[always]


async def test_names() -> None:
    assert isinstance(open_sandbox("none"), NoSandbox)
    with pytest.raises(SandboxUnavailable, match="bubblewrap, docker, none"):
        open_sandbox("chroot")


def test_readable_by_others(tmp_path: Path) -> None:
    assert readable_by_others(Path("/usr"))
    assert not readable_by_others(tmp_path)  # pytest keeps it to its user
    assert not readable_by_others(Path("/nowhere"))


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_elsewhere_it_imports_and_says_why_not(platform: str) -> None:
    code = (
        # The standard library as this system has it; the package as the other one would find it.
        f"import asyncio, subprocess, sys, tempfile; sys.platform = {platform!r}\n"
        "from kernelevo_sandbox import *\n"
        "for name in ('bubblewrap', 'docker', 'none'):\n"
        "    try: open_sandbox(name)\n"
        "    except SandboxUnavailable as e: print(e)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count("needs Linux") == 3


def test_gpu_nodes(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nvidia3"):
        nvidia_devices(3, dev=tmp_path)
    for name in ("nvidia3", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia4"):
        (tmp_path / name).touch()
    assert [node.name for node in nvidia_devices(3, dev=tmp_path)] == [
        "nvidia3",
        "nvidiactl",
        "nvidia-uvm",
        "nvidia-uvm-tools",
    ]


def test_nodes_of_a_part_of_a_gpu(tmp_path: Path) -> None:
    """The two that open this instance, and no other one's; without the driver's numbers there are none."""
    caps = tmp_path / "nvidia-caps"
    caps.mkdir()
    for place in (*(tmp_path / name for name in ("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")),):
        place.touch()
    for number in range(1, 8):
        (caps / f"nvidia-cap{number}").touch()
    minors = tmp_path / "mig-minors"
    minors.write_text(
        "config 1\nmonitor 2\ngpu0/gi1/access 3\ngpu0/gi1/ci0/access 4\ngpu0/gi2/access 5\ngpu0/gi2/ci0/access 6\n"
    )
    nodes = nvidia_devices(0, (2, 0), dev=tmp_path, mig_minors=minors)
    assert [node.name for node in nodes[-2:]] == ["nvidia-cap5", "nvidia-cap6"] and len(nodes) == 6
    with pytest.raises(FileNotFoundError, match="gpu0/gi7/access"):
        nvidia_devices(0, (7, 0), dev=tmp_path, mig_minors=minors)


async def test_devices(kit: Kit) -> None:
    """Only the named node, usable, and /sys to look it up in; nothing that is no device."""
    code = (
        "os.close(os.open('/dev/tty', os.O_PATH))\n"
        "print(json.dumps([sorted(os.listdir('/dev')), os.path.exists('/sys/bus'), os.access('/sys/bus', os.W_OK)]))"
    )
    usual = {"fd", "full", "null", "random", "shm", "stderr", "stdin", "stdout", "urandom", "zero"}
    spec = replace(kit.spec("import json, os\n" + code), devices=(Path("/dev/tty"),))
    ending = await (await kit.sandbox.start(spec)).wait()
    nodes, bus, writable = json.loads(ending.stdout.text())
    assert set(nodes) == usual | {"tty"} and bus and not writable
    for wrong in ("/etc/passwd", "/dev/../etc", "/dev/nowhere"):
        with pytest.raises(SandboxBroken, match="device"):
            await kit.sandbox.start(replace(spec, devices=(Path(wrong),)))
