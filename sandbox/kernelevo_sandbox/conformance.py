"""The conformance kit: what the contract promises, as checks that every backend runs.

A check takes a `Kit` and raises AssertionError where the backend does not conform. `ISOLATION` names those that only a
backend which isolates can pass. Checks look from both sides where they can: what the program reports is compared with what
is seen from outside. The kit must not know any backend.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import errno
import json
import mmap
import os
import signal
import socket
import struct
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelevo_sandbox.contract import (
    Ending,
    EndKind,
    Limits,
    Mount,
    Sandbox,
    SandboxBroken,
    SandboxProcess,
    SandboxSpec,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

_MEMORY = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Kit:
    """A backend, and a Python that can run inside it."""

    sandbox: Sandbox
    python: str = sys.executable
    mounts: tuple[Mount, ...] = ()
    environment: Mapping[str, str] = field(default_factory=lambda: {"LC_ALL": "C.UTF-8"})

    def spec(self, code: str, *, fds: Mapping[int, int] | None = None, **changes: Any) -> SandboxSpec:
        """A spec that runs Python source; further arguments are fields of `SandboxSpec` or of `Limits`."""
        ours = {name: changes.pop(name) for name in ("env", "cpus", "nice", "label", "mounts") if name in changes}
        limits = Limits(**{"memory_bytes": _MEMORY, "wall_seconds": 30.0, **changes})
        mounts = (*self.mounts, *ours.pop("mounts", ()))
        env = ours.pop("env", self.environment)
        argv = (self.python, "-I", "-S", "-c", code)
        return SandboxSpec(argv=argv, env=env, limits=limits, fds=fds or {}, mounts=mounts, **ours)

    async def run(self, code: str, **changes: Any) -> Ending:
        """Run Python source to its end."""
        process = await self.sandbox.start(self.spec(code, **changes))
        return await process.wait()

    async def report(self, code: str, **changes: Any) -> Any:
        """What Python source prints, as JSON; it must end well."""
        ending = await self.run("import json, os, sys\n" + code, **changes)
        assert ending.kind is EndKind.EXITED, _told(ending)
        assert ending.exit_code == 0, _told(ending)
        return json.loads(ending.stdout.text())

    @contextlib.asynccontextmanager
    async def running(self, code: str, **changes: Any) -> AsyncIterator[SandboxProcess]:
        """A started program, killed at the end."""
        process = await self.sandbox.start(self.spec(code, **changes))
        try:
            yield process
        finally:
            await process.kill()


CHECKS: dict[str, Callable[[Kit], Awaitable[None]]] = {}
"""Every check by name."""
ISOLATION: set[str] = set()
"""Those that a backend without isolation cannot pass, and must not pretend to."""


def _check(function: Callable[[Kit], Awaitable[None]]) -> Callable[[Kit], Awaitable[None]]:
    CHECKS[function.__name__] = function
    return function


def _isolation(function: Callable[[Kit], Awaitable[None]]) -> Callable[[Kit], Awaitable[None]]:
    ISOLATION.add(function.__name__)
    return _check(function)


def _told(ending: Ending) -> str:
    return f"{ending.kind} {ending.exit_code} {ending.signal} {ending.detail}: {ending.stderr.text()[-1000:]}"


@contextlib.contextmanager
def _closing(*fds: int) -> Any:
    try:
        yield fds
    finally:
        for fd in fds:
            with contextlib.suppress(OSError):
                os.close(fd)


async def _eventually(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  what is awaited is another process
            await asyncio.sleep(0.005)


async def _readable(fd: int, seconds: float = 10.0) -> bytes:
    """One read from a pipe, without holding up the loop."""
    os.set_blocking(fd, False)
    async with asyncio.timeout(seconds):
        while True:
            try:
                return os.read(fd, 1 << 16)
            except BlockingIOError:
                await asyncio.sleep(0.005)


class _Counter:
    """A memfd that a program counts up in: progress that can be seen from outside without its help."""

    CODE = "import mmap, os\nm = mmap.mmap(5, 4096)\nc = memoryview(m).cast('Q')\nwhile True: c[0] += 1"

    def __enter__(self) -> _Counter:
        self.fd = os.memfd_create("counter")
        os.ftruncate(self.fd, 4096)
        self._map = mmap.mmap(self.fd, 4096)
        return self

    def __exit__(self, *_: object) -> None:
        self._map.close()
        os.close(self.fd)

    @property
    def value(self) -> int:
        return int(struct.unpack_from("Q", self._map)[0])

    async def moving(self) -> None:
        seen = self.value
        await _eventually(lambda: self.value > seen)


# How a program ends.


@_check
async def exit_code_is_told(kit: Kit) -> None:
    ending = await kit.run("raise SystemExit(7)")
    assert (ending.kind, ending.exit_code, ending.signal) == (EndKind.EXITED, 7, None), _told(ending)


@_check
async def early_exit_is_only_an_exit(kit: Kit) -> None:
    ending = await kit.run("import os; os._exit(0); print('never')")
    assert (ending.kind, ending.exit_code, ending.stdout.total_bytes) == (EndKind.EXITED, 0, 0), _told(ending)


@_check
async def signal_is_told(kit: Kit) -> None:
    ending = await kit.run("import os; os.kill(os.getpid(), 11)")
    assert (ending.kind, ending.signal) == (EndKind.SIGNALED, signal.SIGSEGV), _told(ending)


@_check
async def missing_program_is_no_success(kit: Kit) -> None:
    spec = SandboxSpec(argv=("/nowhere/program",), env={}, limits=Limits(memory_bytes=_MEMORY))
    try:
        ending = await (await kit.sandbox.start(spec)).wait()
    except SandboxBroken:
        return
    assert ending.kind is EndKind.EXITED and ending.exit_code in (126, 127), _told(ending)


@_check
async def wait_can_be_shared_and_repeated(kit: Kit) -> None:
    process = await kit.sandbox.start(kit.spec("print('x')"))
    first, second = await asyncio.gather(process.wait(), process.wait())
    assert first is second is await process.wait()
    assert process.ended
    assert await process.kill() is first
    await process.freeze()
    await process.thaw()


@_check
async def cancelled_wait_leaves_the_program_running(kit: Kit) -> None:
    async with kit.running("import time; time.sleep(30)") as process:
        waiting = asyncio.create_task(process.wait())
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert not process.ended


@_check
async def kill_ends_it(kit: Kit) -> None:
    process = await kit.sandbox.start(kit.spec("import time; time.sleep(30)"))
    ending = await process.kill()
    assert ending.kind is EndKind.KILLED, _told(ending)
    assert process.ended


@_check
async def close_kills_what_runs(kit: Kit) -> None:
    process = await kit.sandbox.start(kit.spec("import time; time.sleep(30)"))
    await kit.sandbox.close()
    assert (await process.wait()).kind is EndKind.KILLED


# What crosses.


@_check
async def streams_are_captured_apart(kit: Kit) -> None:
    ending = await kit.run("import sys; print('out'); print('err', file=sys.stderr)")
    assert (ending.stdout.text(), ending.stderr.text()) == ("out\n", "err\n"), _told(ending)


@_check
async def long_output_keeps_head_and_tail(kit: Kit) -> None:
    ending = await kit.run("import sys; sys.stdout.write('first' + 'x' * 500_000 + 'last')")
    assert ending.kind is EndKind.EXITED, _told(ending)
    assert ending.stdout.total_bytes == 500_009
    assert ending.stdout.head.startswith(b"first") and ending.stdout.tail.endswith(b"last")
    assert len(ending.stdout.head) + len(ending.stdout.tail) < 200_000


@_check
async def output_is_seen_while_it_runs(kit: Kit) -> None:
    async with kit.running("import time; print('now', flush=True); time.sleep(30)") as process:
        await _eventually(lambda: process.output()[0].head == b"now\n")


@_check
async def environment_is_exactly_as_given(kit: Kit) -> None:
    given = {"LC_ALL": "C.UTF-8", "ODD": "ü = \n'\"$x", "EMPTY": ""}
    found = await kit.report("print(json.dumps(dict(os.environ)))", env=given)
    found.pop("PWD", None)
    assert found == given, found


@_check
async def only_mapped_descriptors_cross(kit: Kit) -> None:
    read, write = os.pipe()
    # Inheritable, as a careless library leaves them: it must not cross all the same.
    stray = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(stray, True)
    one, two = os.memfd_create("one"), os.memfd_create("two")
    os.write(one, b"1")
    os.write(two, b"2")
    with _closing(read, write, stray, one, two):
        found = await kit.report(
            "seen = []\n"
            "for n in range(1024):\n"
            "    try: os.fstat(n); seen.append(n)\n"
            "    except OSError: pass\n"
            "os.write(9, b'ok')\n"
            "print(json.dumps([seen, os.pread(4, 1, 0).decode(), os.pread(3, 1, 0).decode(), sys.stdin.read()]))",
            # Crossed on purpose: moves in the wrong order would overwrite one with the other.
            fds={3: two, 4: one, 9: write},
        )
        assert found == [[0, 1, 2, 3, 4, 9], "1", "2", ""], found
        assert await _readable(read) == b"ok"


@_check
async def socket_passes_memory_later(kit: Kit) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    shared = os.memfd_create("shared")
    os.ftruncate(shared, 4096)
    code = (
        "import array, mmap, socket\n"
        "s = socket.socket(fileno=3)\n"
        "m, a, *_ = s.recvmsg(16, socket.CMSG_LEN(4))\n"
        "p = mmap.mmap(array.array('i', a[0][2])[0], 4096)\n"
        "p[0:5] = p[0:5].upper(); s.send(b'done'); s.recv(1)"
    )
    with _closing(shared), ours, mmap.mmap(shared, 4096) as memory:
        memory[0:5] = b"hello"
        with theirs:
            process = await kit.sandbox.start(kit.spec(code, fds={3: theirs.fileno()}))
        ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [shared]).tobytes())])
        ours.setblocking(False)
        async with asyncio.timeout(10):
            assert await asyncio.get_running_loop().sock_recv(ours, 16) == b"done"
        assert memory[0:5] == b"HELLO"
        ours.send(b"x")
        ending = await process.wait()
        assert ending.exit_code == 0, _told(ending)


# Limits.


@_check
async def memory_limit_ends_it(kit: Kit) -> None:
    ending = await kit.run("x = b'x' * (1 << 30); print('never')")
    assert ending.kind is EndKind.OUT_OF_MEMORY, _told(ending)
    assert ending.stdout.total_bytes == 0


@_check
async def memory_limit_counts_the_whole_tree(kit: Kit) -> None:
    code = "import os, time\nfor _ in range(3): os.fork()\nx = b'x' * (64 << 20); time.sleep(30)"
    ending = await kit.run(code, memory_bytes=_MEMORY)
    assert ending.kind is EndKind.OUT_OF_MEMORY, _told(ending)


@_check
async def memory_below_the_limit_is_given(kit: Kit) -> None:
    ending = await kit.run("x = b'x' * (160 << 20); print(len(x))")
    assert ending.exit_code == 0, _told(ending)


@_check
async def wall_limit_ends_it(kit: Kit) -> None:
    began = time.monotonic()
    ending = await kit.run("import time; time.sleep(30)", wall_seconds=0.3)
    assert ending.kind is EndKind.WALL_TIMEOUT, _told(ending)
    assert 0.25 < ending.wall_seconds < 3.0 and time.monotonic() - began < 5.0


@_check
async def frozen_time_is_not_counted(kit: Kit) -> None:
    async with kit.running("import time; time.sleep(30)", wall_seconds=0.6) as process:
        await process.freeze()
        await asyncio.sleep(0.9)
        assert not process.ended
        await process.thaw()
        ending = await process.wait()
        assert ending.kind is EndKind.WALL_TIMEOUT, _told(ending)
        assert ending.wall_seconds < 0.9


@_check
async def cpu_limit_counts_the_whole_tree(kit: Kit) -> None:
    ending = await kit.run("import os\nos.fork()\nwhile True: pass", cpu_seconds=0.4)
    assert ending.kind is EndKind.CPU_TIMEOUT, _told(ending)
    assert ending.cpu_seconds is not None and ending.cpu_seconds < 3.0


@_check
async def output_flood_ends_it(kit: Kit) -> None:
    began = time.monotonic()
    ending = await kit.run("import os\nwhile True: os.write(1, b'x' * 65536); os.write(2, b'y' * 65536)")
    assert ending.kind is EndKind.OUTPUT_LIMIT, _told(ending)
    assert time.monotonic() - began < 5.0
    assert len(ending.stdout.head) + len(ending.stdout.tail) < 200_000


@_check
async def file_size_is_limited(kit: Kit) -> None:
    code = (
        "import os, signal, tempfile\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "f = tempfile.TemporaryFile()\n"
        "try: f.write(b'x' * (2 << 20)); f.flush(); print('\"written\"')\n"
        "except OSError as e: print(e.errno)"
    )
    assert await kit.report(code, file_size_bytes=1 << 20) == errno.EFBIG


@_check
async def open_files_are_limited(kit: Kit) -> None:
    code = "n = 0\ntry:\n    while True: os.dup(0); n += 1\nexcept OSError as e: print(json.dumps([n, e.errno]))"
    count, error = await kit.report(code, open_files=50)
    assert count <= 50 and error == errno.EMFILE


@_check
async def fork_bomb_is_bounded(kit: Kit) -> None:
    code = (
        "import os, time\nn = 0\n"
        "try:\n    while True:\n        if os.fork() == 0: time.sleep(60)\n        n += 1\n"
        "except OSError: print(n, flush=True); os._exit(0)"
    )
    ending = await kit.run(code, processes=24)
    refused = ending.kind is EndKind.EXITED and int(ending.stdout.text()) <= 24
    assert refused or ending.kind is EndKind.KILLED, _told(ending)


@_check
async def cores_are_pinned(kit: Kit) -> None:
    core = max(os.sched_getaffinity(0))
    assert await kit.report("print(json.dumps(sorted(os.sched_getaffinity(0))))", cpus=frozenset({core})) == [core]


@_check
async def nice_is_set(kit: Kit) -> None:
    assert await kit.report("print(os.nice(0))", nice=7) == 7


# Freezing and death.


@_check
async def freeze_stops_and_thaw_resumes(kit: Kit) -> None:
    with _Counter() as counter:
        code = "import os\nos.fork()\n" + _Counter.CODE
        async with kit.running(code, fds={5: counter.fd}) as process:
            for _ in range(5):
                await counter.moving()
                await process.freeze()
                await process.freeze()
                seen = counter.value
                await asyncio.sleep(0.03)
                assert counter.value == seen, "it went on while frozen"
                await process.thaw()
                await process.thaw()
            await counter.moving()


@_check
async def freeze_holds_a_tree_that_spawns(kit: Kit) -> None:
    """Processes come and go, and a parent waits in `vfork`, at whatever moment the freeze arrives."""
    code = (
        "import mmap, os\nos.fork()\nc = memoryview(mmap.mmap(5, 4096)).cast('Q')\n"
        "while True: os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0); c[0] += 1"
    )
    with _Counter() as counter:
        async with kit.running(code, fds={5: counter.fd}) as process:
            for _ in range(10):
                await counter.moving()
                async with asyncio.timeout(4.0):
                    await process.freeze()
                seen = counter.value
                await asyncio.sleep(0.01)
                assert counter.value == seen, "it went on while frozen"
                await process.thaw()
            await counter.moving()


@_check
async def freeze_right_after_the_start(kit: Kit) -> None:
    with _Counter() as counter:
        async with kit.running(_Counter.CODE, fds={5: counter.fd}) as process:
            await process.freeze()
            seen = counter.value
            await asyncio.sleep(0.1)
            assert counter.value == seen, "it went on while frozen"
            await process.thaw()
            await counter.moving()


@_check
async def kill_works_while_frozen(kit: Kit) -> None:
    with _Counter() as counter:
        process = await kit.sandbox.start(kit.spec(_Counter.CODE, fds={5: counter.fd}))
        await counter.moving()
        await process.freeze()
        seen = counter.value
        ending = await process.kill()
        assert ending.kind is EndKind.KILLED, _told(ending)
        assert counter.value == seen, "it ran on between thaw and death"


_DAEMON = (
    "import os, time\n"
    "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
    "        os.close(1); os.close(2); os.write(5, b'alive'); time.sleep(600)\n    os._exit(0)\n"
)


@_check
async def kill_ends_daemons(kit: Kit) -> None:
    read, write = os.pipe()
    with _closing(read):
        with _closing(write):
            process = await kit.sandbox.start(kit.spec(_DAEMON + "time.sleep(600)", fds={5: write}))
        assert await _readable(read) == b"alive"
        await process.kill()
        # Nobody holds the pipe's other end any more: the daemon is gone, not merely forgotten. (It does not wait: the pipe
        # is non-blocking, and a daemon that is still ending fails this.)
        assert os.read(read, 1) == b""


@_check
async def exit_ends_daemons(kit: Kit) -> None:
    read, write = os.pipe()
    with _closing(read):
        with _closing(write):
            process = await kit.sandbox.start(kit.spec(_DAEMON + "time.sleep(0.3)", fds={5: write}))
        ending = await process.wait()
        assert (ending.kind, ending.exit_code) == (EndKind.EXITED, 0), _told(ending)
        assert await _readable(read) == b"alive"
        assert os.read(read, 1) == b""


@_check
async def several_run_at_once(kit: Kit) -> None:
    async def one(index: int) -> None:
        ending = await kit.run(f"import time; time.sleep(0.1); print({index})", label=f"one-{index}")
        assert ending.stdout.text() == f"{index}\n", _told(ending)

    await asyncio.gather(*(one(index) for index in range(5)))


# Isolation.


@_isolation
async def mounts_are_read_only(kit: Kit) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        file = Path(folder) / "file"
        file.write_text("host")
        file.chmod(0o666)
        code = (
            "found = [open('/data/deep/file').read()]\n"
            "for act in (lambda: open('/data/deep/file', 'w'), lambda: open('/data/deep/new', 'w'),\n"
            "            lambda: open('/new', 'w'), lambda: os.unlink('/data/deep/file')):\n"
            "    try: act(); found.append('done')\n"
            "    except OSError: found.append('refused')\n"
            "print(json.dumps(found))"
        )
        found = await kit.report(code, mounts=(Mount(source=Path(folder), target="/data/deep"),))
        assert found == ["host", *["refused"] * 4], found
        assert file.read_text() == "host"


@_isolation
async def temporary_folder_is_private_and_limited(kit: Kit) -> None:
    with tempfile.NamedTemporaryFile(dir="/tmp") as host:
        mine = Path(host.name + "-mine")
        code = (
            f"print(json.dumps([os.path.exists({host.name!r}), os.listdir('/tmp')]))\nopen({str(mine)!r}, 'w').close()"
        )
        try:
            for _ in range(2):
                assert await kit.report(code) == [False, []]
            assert not mine.exists()
        finally:
            mine.unlink(missing_ok=True)
    code = (
        "n = 0\nfor folder in ('/tmp', '/dev/shm'):\n    try:\n        with open(folder + '/f', 'wb', buffering=0) as f:\n"
        "            while n < 64 << 20: n += f.write(b'x' * 65536)\n    except OSError: pass\nprint(n)"
    )
    assert await kit.report(code, tmpfs_bytes=1 << 20) <= 2 << 20


@_isolation
async def no_network(kit: Kit) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        name = f"kernelevo-conformance-{os.getpid()}"
        abstract.bind("\0" + name)
        abstract.listen()
        code = (
            "import socket\nreached = []\n"
            f"for family, address in ((socket.AF_INET, ('127.0.0.1', {server.getsockname()[1]})),\n"
            f"                        (socket.AF_INET, ('192.0.2.1', 80)), (socket.AF_UNIX, '\\0{name}')):\n"
            "    s = socket.socket(family); s.settimeout(1)\n"
            "    try: s.connect(address); reached.append(str(address))\n"
            "    except OSError: pass\n"
            "names = [l.split(':')[0].strip() for l in open('/proc/net/dev') if ':' in l]\n"
            "print(json.dumps([reached, names]))"
        )
        reached, names = await kit.report(code)
        assert reached == [] and set(names) <= {"lo"}, (reached, names)


@_isolation
async def vsock_and_netlink_are_refused(kit: Kit) -> None:
    code = (
        "import socket\nmade = []\n"
        "for family in (40, 16, 17, 38, 31):\n"
        "    try: socket.socket(family, socket.SOCK_DGRAM); made.append(family)\n"
        "    except OSError: pass\n"
        "print(json.dumps(made))"
    )
    assert await kit.report(code) == []


@_isolation
async def uid_outside_is_unprivileged(kit: Kit) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        # The kernel states who sends: nothing that the program says about itself.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        with theirs:
            ending = await kit.run("import socket; socket.socket(fileno=3).send(b'x')", fds={3: theirs.fileno()})
        assert ending.exit_code == 0, _told(ending)
        _, ancillary, *_ = ours.recvmsg(1, socket.CMSG_SPACE(12))
        _, uid, gid = struct.unpack("iII", ancillary[0][2])
        assert uid != 0 and gid != 0
        assert os.geteuid() == 0 or uid == os.geteuid()


@_isolation
async def no_capabilities_and_no_new_ones(kit: Kit) -> None:
    code = (
        "fields = dict(l.split(':', 1) for l in open('/proc/self/status'))\n"
        "print(json.dumps({k: fields[k].strip() for k in ('CapInh', 'CapPrm', 'CapEff', 'CapAmb', 'NoNewPrivs', 'Seccomp')}))"
    )
    found = await kit.report(code)
    assert (found.pop("NoNewPrivs"), found.pop("Seccomp")) == ("1", "2"), found
    assert all(int(value, 16) == 0 for value in found.values()), found


@_isolation
async def no_namespaces_mounts_and_tracing(kit: Kit) -> None:
    # Each call would fail for its arguments alone, but for unshare's: only the error tells whether it was allowed to try.
    code = (
        "import ctypes\nc = ctypes.CDLL(None, use_errno=True)\n"
        "calls = [lambda: c.mount(None, b'/nowhere', None, 0, None), lambda: c.chroot(b'/nowhere'),\n"
        "         lambda: c.umount2(b'/nowhere', 2), lambda: c.ptrace(2, 0x7fffffff, 0, 0), lambda: c.unshare(0x10000000)]\n"
        "print(json.dumps([(call(), ctypes.get_errno()) for call in calls]))"
    )
    found = await kit.report(code)
    assert found == [[-1, errno.EPERM]] * 5, found


@_isolation
async def host_processes_are_out_of_sight(kit: Kit) -> None:
    code = (
        "seen = [int(n) for n in os.listdir('/proc') if n.isdigit()]\n"
        f"try: os.kill({os.getpid()}, 0); reached = True\nexcept OSError: reached = False\n"
        "print(json.dumps([len(seen), reached]))"
    )
    seen, reached = await kit.report(code)
    assert seen <= 4 and not reached


@_isolation
async def sandboxes_cannot_signal_each_other(kit: Kit) -> None:
    # In a backend that does not isolate, signalling every process would reach the caller's: so this looks, and signals only
    # where nothing of the other can be seen.
    with _Counter() as counter:
        async with kit.running(_Counter.CODE, fds={5: counter.fd}) as other:
            await counter.moving()
            code = (
                "import os, sys\nseen = len([n for n in os.listdir('/proc') if n.isdigit()])\nsys.stdout.write(str(seen))\n"
                "sys.stdout.flush()\nif seen < 5: os.kill(-1, 9)"
            )
            ending = await kit.run(code)
            assert int(ending.stdout.text()) < 5, _told(ending)
            await counter.moving()
            assert not other.ended


@_isolation
async def host_secrets_are_out_of_reach(kit: Kit) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        secret = Path(folder) / "secret"
        secret.write_text("secret")
        secret.chmod(0o644)  # its bits alone would let anyone read it
        places = [str(secret), "/etc/shadow", "/etc/ssh", "/var/lib", "/home", "/run", "/boot"]
        code = f"print(json.dumps([p for p in {places!r} if os.path.exists(p)]))"
        found = await kit.report(code)
        assert found == [], found


@_isolation
async def kernel_settings_are_not_writable(kit: Kit) -> None:
    code = (
        "opened = []\n"
        "for path in ('/proc/sys/kernel/core_pattern', '/proc/sys/vm/drop_caches', '/proc/sysrq-trigger', '/proc/1/mem',\n"
        "             '/proc/1/environ', '/dev/new', '/sys/devices/system/cpu/cpu0/online'):\n"
        "    try: fd = os.open(path, os.O_RDWR | os.O_CREAT); opened.append(path)\n"
        "    except OSError: pass\n"
        "print(json.dumps(opened))"
    )
    found = set(await kit.report(code))
    # The reaper's memory is open to a program of the same uid in the same namespace: so its exit code is only a claim.
    assert found <= {"/proc/1/mem"}, found


@_isolation
async def no_process_within_reach_is_unfiltered(kit: Kit) -> None:
    """A process whose memory can be written can be made to do anything: so it must not be allowed more than the program."""
    code = (
        "found = []\nfor pid in os.listdir('/proc'):\n    if pid.isdigit():\n"
        "        try: os.close(os.open(f'/proc/{pid}/mem', os.O_RDWR))\n        except OSError: continue\n"
        "        status = dict(l.split(':', 1) for l in open(f'/proc/{pid}/status') if ':' in l)\n"
        "        if status['Seccomp'].strip() != '2' or int(status['CapEff'], 16): found.append(status['Name'].strip())\n"
        "print(json.dumps(found))"
    )
    assert await kit.report(code) == []


@_isolation
async def nothing_of_the_caller_shows_in_proc(kit: Kit) -> None:
    # What the caller was started with, as anyone allowed to can read it; spelled in hex, since the code shows in /proc too.
    given = {f"{name}={value}".encode() for name, value in kit.environment.items()}
    environment = set(Path("/proc/self/environ").read_bytes().split(b"\0")) - given
    entries = [entry.hex() for entry in environment if len(entry) >= 8]
    assert entries, "the caller has no environment to find"
    code = (
        "text = b''\nfor pid in os.listdir('/proc'):\n    if pid.isdigit() and int(pid) != os.getpid():\n"
        "        for name in ('environ', 'cmdline'):\n            try: text += open(f'/proc/{pid}/{name}', 'rb').read()\n"
        "            except OSError: pass\n"
        f"print(json.dumps([e for e in {entries!r} if bytes.fromhex(e) in text]))"
    )
    assert await kit.report(code) == []
