"""What holds on this host, found by trying it inside a sandbox of the backend at hand.

Returns data only; showing it, and refusing to start where an essential guarantee is missing, is the caller's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import mmap
import os
import socket
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelevo_sandbox.contract import (
    EndKind,
    Guarantee,
    Limits,
    MemoryEnforcement,
    SandboxBroken,
    SandboxError,
    SandboxSpec,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from kernelevo_sandbox.contract import Ending, Mount, Sandbox

_MEMORY = 128 << 20
_TMPFS = 1 << 20
_FILE_SIZE = 16 << 20
_SECONDS = 10.0
_ENVIRONMENT = {"LC_ALL": "C.UTF-8"}
_INSIDE = Path(__file__).with_name("inside.py")

_ISOLATE = "Use the bubblewrap backend on a host whose kernel allows it."
_REMEDIES = {
    "no_network": "The kernel must allow network namespaces (CONFIG_NET_NS; in a container, CAP_SYS_ADMIN or user namespaces).",
    "host_files": "The kernel must allow mount namespaces; keep secrets out of /usr, which is visible inside.",
    "unprivileged_uid": "Run as root with setpriv (util-linux), or as an ordinary user with user namespaces allowed.",
    "memory_limit": "Give the evaluator a writable memory control group, or give the program a smaller limit.",
    "freeze": "Give the evaluator a writable freezer (version 1) or any version 2 control group.",
}


def _guarantee(name: str, holds: bool, evidence: str, *, essential: bool = True, remedy: str = "") -> Guarantee:
    remedy = "" if holds else remedy or _REMEDIES.get(name, _ISOLATE)
    return Guarantee(name=name, holds=holds, evidence=evidence, remedy=remedy, essential=essential)


class _Prober:
    """Runs Python inside the backend."""

    def __init__(self, sandbox: Sandbox, mounts: tuple[Mount, ...], cpus: frozenset[int] | None) -> None:
        self.sandbox = sandbox
        self._mounts = mounts
        self._cpus = cpus

    def spec(self, code: str, *arguments: str, fds: dict[int, int] | None = None, **limits: Any) -> SandboxSpec:
        return SandboxSpec(
            argv=(sys.executable, "-I", "-S", "-c", code, *arguments),
            env=_ENVIRONMENT,
            limits=Limits(
                **{
                    "memory_bytes": _MEMORY,
                    "tmpfs_bytes": _TMPFS,
                    "file_size_bytes": _FILE_SIZE,
                    "processes": 16,
                    "wall_seconds": _SECONDS,
                    **limits,
                }
            ),
            fds=fds or {},
            mounts=self._mounts,
            cpus=self._cpus,
            label="probe",
        )

    async def run(self, code: str, *arguments: str, **changes: Any) -> Ending:
        return await (await self.sandbox.start(self.spec(code, *arguments, **changes))).wait()


async def probe(
    sandbox: Sandbox, mounts: tuple[Mount, ...], cpus: frozenset[int] | None = None
) -> tuple[Guarantee, ...]:
    """Try what `sandbox` promises, on the cores `cpus`. `mounts` make the running Python visible inside.

    Raises:
        SandboxError: nothing can be started at all; says why.
    """
    prober = _Prober(sandbox, mounts, cpus)
    # The first start shows whether any is possible, so that one clear error comes instead of many.
    try:
        first = await _attempts(prober)
    except OSError as failure:
        raise SandboxBroken(f"what a probe needs cannot be made in {tempfile.gettempdir()}: {failure}") from failure
    found: list[Guarantee] = list(first)
    for result in await asyncio.gather(
        *(_tried(name, attempt, prober) for name, attempt in _TRIALS.items()),
    ):
        found += result
    return tuple(found)


async def _tried(
    name: str, attempt: Callable[[_Prober], Awaitable[Sequence[Guarantee]]], prober: _Prober
) -> Sequence[Guarantee]:
    try:
        return await attempt(prober)
    except (SandboxError, TimeoutError, OSError, ValueError) as failure:
        return [_guarantee(name, False, f"could not be tried: {failure}")]


async def _attempts(prober: _Prober) -> list[Guarantee]:
    """Everything that a program tries by itself, and who it is when seen from outside."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        name = f"kernelevo-probe-{os.getpid()}-{time.monotonic_ns()}"
        abstract.bind("\0" + name)
        abstract.listen()
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o755)
        secret = folder / "secret"
        secret.write_text("secret")
        secret.chmod(0o644)
        given_inside = {f"{name}={value}".encode() for name, value in _ENVIRONMENT.items()}
        environment = set(Path("/proc/self/environ").read_bytes().split(b"\0")) - given_inside
        given = {
            "port": server.getsockname()[1],
            "abstract": name,
            "secret": str(secret),
            # bwrap itself sets PWD, which may be the caller's too.
            "environment": [e.hex() for e in sorted(environment) if len(e) >= 8 and not e.startswith(b"PWD=")][:200],
            "pid": os.getpid(),
            "tmpfs": _TMPFS,
            "file_size": _FILE_SIZE,
        }
        ending = await prober.run(_INSIDE.read_text(), json.dumps(given))
    try:
        said: dict[str, tuple[bool, str]] = json.loads(ending.stdout.text())
    except ValueError:
        evidence = f"the probe ended by {ending.detail}: {ending.stderr.text()[-500:]}"
        return [
            _guarantee(
                "runs_programs", False, evidence, remedy="The interpreter and its libraries must be readable inside."
            )
        ]
    return [_guarantee(name, held, evidence) for name, (held, evidence) in said.items()]


async def _identity(prober: _Prober) -> list[Guarantee]:
    """The uids of two sandboxes, as the kernel states them to the receiver of a message."""
    uids = []
    for _ in range(2):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            with theirs:
                await prober.run("import socket; socket.socket(fileno=3).send(b'x')", fds={3: theirs.fileno()})
            _, ancillary, *_ = ours.recvmsg(1, socket.CMSG_SPACE(12), socket.MSG_DONTWAIT)
            uids.append(struct.unpack("iII", ancillary[0][2])[1])
    return [
        _guarantee("unprivileged_uid", 0 not in uids, f"outside, two sandboxes are the uids {uids[0]} and {uids[1]}"),
        _guarantee(
            "distinct_uid",
            uids[0] != uids[1] and os.geteuid() not in uids,
            f"the uids {uids[0]} and {uids[1]}, the caller {os.geteuid()}",
            essential=False,
            remedy="Only root can give every sandbox a uid of its own; namespaces separate them all the same.",
        ),
    ]


async def _memory(prober: _Prober) -> list[Guarantee]:
    began = time.monotonic()
    ending = await prober.run(f"x = b'x' * {4 * _MEMORY}")
    by = ending.memory_enforced_by
    evidence = (
        f"asked for four times its limit: {ending.kind.value} after {time.monotonic() - began:.2f} s ({ending.detail})"
    )
    return [
        _guarantee("memory_limit", ending.kind is EndKind.OUT_OF_MEMORY, evidence),
        _guarantee(
            "memory_limit_by_kernel",
            by is not MemoryEnforcement.WATCHDOG,
            f"held by {by.value}",
            essential=False,
            remedy=_REMEDIES["memory_limit"],
        ),
    ]


async def _processes(prober: _Prober) -> list[Guarantee]:
    code = (
        "import os, time\nn = 0\n"
        "try:\n    while n < 200:\n        if os.fork() == 0: time.sleep(30); os._exit(0)\n        n += 1\n"
        "except OSError: pass\nprint(n, flush=True)\nos._exit(0)"
    )
    ending = await prober.run(code)
    text = ending.stdout.text().strip()
    holds = ending.kind is EndKind.PROCESS_LIMIT or (text.isdigit() and int(text) <= 16)
    return [_guarantee("process_limit", holds, f"with 16 allowed, {text or 'no'} children; {ending.detail}")]


async def _output(prober: _Prober) -> list[Guarantee]:
    ending = await prober.run("import os\nwhile True: os.write(1, b'x' * 65536)")
    evidence = f"an endless write: {ending.kind.value} after {ending.stdout.total_bytes} bytes"
    return [_guarantee("output_limit", ending.kind is EndKind.OUTPUT_LIMIT, evidence)]


async def _time(prober: _Prober) -> list[Guarantee]:
    ending = await prober.run("import time; time.sleep(30)", wall_seconds=0.2)
    evidence = f"a sleep with 0.2 s allowed: {ending.kind.value} after {ending.wall_seconds:.2f} s"
    return [_guarantee("wall_limit", ending.kind is EndKind.WALL_TIMEOUT, evidence)]


async def _freeze(prober: _Prober) -> list[Guarantee]:
    """A program and its child count up in shared memory: it must stand still while they are frozen, and move after."""
    code = "import mmap, os\nos.fork()\nc = memoryview(mmap.mmap(5, 4096)).cast('Q')\nwhile True: c[0] += 1"
    fd = os.memfd_create("probe")
    try:
        os.ftruncate(fd, 4096)
        with mmap.mmap(fd, 4096) as memory:

            def count() -> int:
                return int(struct.unpack_from("Q", memory)[0])

            async def moved(since: int) -> None:
                async with asyncio.timeout(_SECONDS):
                    while count() == since:  # noqa: ASYNC110  what is awaited is another process
                        await asyncio.sleep(0.002)

            process = await prober.sandbox.start(prober.spec(code, fds={5: fd}))
            try:
                await moved(0)
                began = time.monotonic()
                await process.freeze()
                took = time.monotonic() - began
                seen = count()
                await asyncio.sleep(0.05)
                stood = count() == seen
                await process.thaw()
                await moved(seen)
            finally:
                await process.kill()
    finally:
        os.close(fd)
    evidence = f"frozen in {took * 1e3:.2f} ms; {'no' if stood else 'there was'} progress in 50 ms; then thawed"
    return [_guarantee("freeze", stood, evidence)]


async def _death(prober: _Prober) -> list[Guarantee]:
    """A daemon that left its session holds a pipe; the pipe ends when it is gone."""
    code = (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        os.write(5, b'x'); time.sleep(600)\n    os._exit(0)\ntime.sleep(600)"
    )
    read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        try:
            process = await prober.sandbox.start(prober.spec(code, fds={5: write}))
        finally:
            os.close(write)
        try:
            async with asyncio.timeout(_SECONDS):
                while not _started(read):  # noqa: ASYNC110
                    await asyncio.sleep(0.002)
        finally:
            await process.kill()
        try:
            gone = os.read(read, 1) == b""
        except BlockingIOError:
            gone = False
    finally:
        os.close(read)
    evidence = f"a daemon that left its session {'was gone when' if gone else 'outlived'} the sandbox{' ended' if gone else ''}"
    return [_guarantee("tree_death", gone, evidence)]


def _started(pipe: int) -> bool:
    try:
        return bool(os.read(pipe, 1))
    except BlockingIOError:
        return False


_TRIALS: dict[str, Callable[[_Prober], Awaitable[Sequence[Guarantee]]]] = {
    "unprivileged_uid": _identity,
    "memory_limit": _memory,
    "process_limit": _processes,
    "output_limit": _output,
    "wall_limit": _time,
    "freeze": _freeze,
    "tree_death": _death,
}
