"""The evaluator's side of `launcher.py`: starts it, asks it for cells, hands them what to run, learns how they ended."""

from __future__ import annotations

import array
import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelevo_sandbox.contract import SandboxBroken

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LAUNCHER = Path(__file__).with_name("launcher.py")
_PACKET = 64 * 1024
_READY_SECONDS = 20.0
_CLOSE_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CellExit:
    """How the process that the launcher forked ended: a wait status, or `None` when the launcher itself died."""

    status: int | None
    cpu_seconds: float | None = None
    out_of_memory: bool = False
    """Whether whoever keeps the memory limit says that it ended the process there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a cell is to execute. `fds` maps numbers inside to descriptors of this process."""

    argv: Sequence[str]
    env: Mapping[str, str]
    fds: Mapping[int, int]
    rlimits: Mapping[str, int]
    cpus: frozenset[int] | None = None
    nice: int = 0
    uid: int | None = None
    supervise_report: int | None = None
    """A pipe's write end: run the program below a supervisor that ends all its descendants, and report its status there."""
    folder: str = "/"
    """Where the program starts."""
    seccomp: bytes | None = None
    """A filter that is loaded right before the program is executed."""


def hand_over(sock: socket.socket, request: Request, errors: int | None = None) -> None:
    """Send a request to a process that waits for one.

    `errors` is the other end of a SEQPACKET socket that closes when the program has been executed; without it `sock` does.

    Raises:
        SandboxBroken: that process is gone.
    """
    numbers = list(request.fds)
    fds = [request.fds[number] for number in numbers]
    body: dict[str, Any] = {
        "argv": list(request.argv),
        "env": dict(request.env),
        "fds": {str(number): index for index, number in enumerate(numbers, start=1)},
        "rlimits": dict(request.rlimits),
        "cpus": sorted(request.cpus) if request.cpus is not None else None,
        "nice": request.nice,
        "uid": request.uid,
        "supervise": request.supervise_report is not None,
        "folder": request.folder,
        "seccomp": request.seccomp.hex() if request.seccomp is not None else None,
    }
    for name, fd in (("report", request.supervise_report), ("errors", errors)):
        if fd is not None:
            fds.append(fd)
            body[name] = len(fds)
    memfd = memory_file(json.dumps(body).encode(), "request")
    try:
        _send(sock, b"{}", [memfd, *fds])
    except OSError as failure:
        raise SandboxBroken(f"the process that was to run the program is gone: {failure}") from failure
    finally:
        os.close(memfd)


async def executed(sock: socket.socket, program: str) -> None:
    """Wait until a handed over program has been executed.

    Raises:
        SandboxBroken: it could not be.
    """
    answer, _ = await receive(sock)
    if answer:
        raise SandboxBroken(f"could not execute {program}: {json.loads(answer)['error']}")


@dataclass(slots=True)
class Cell:
    """A forked child that waits for its program, and later is that program."""

    id: int
    pid: int
    pidfd: int
    sock: socket.socket
    exit: asyncio.Future[CellExit]
    _closed: bool = field(default=False)

    async def execute(self, request: Request) -> None:
        """Hand over the program; returns once it has been executed.

        Raises:
            SandboxBroken: it could not be.
        """
        hand_over(self.sock, request)
        await executed(self.sock, request.argv[0])
        self.sock.close()

    def signal(self, number: int) -> None:
        """Signal the process itself; nothing happens once it has ended."""
        if not self._closed:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)

    def close(self) -> None:
        """Give up this process's handles. Idempotent."""
        if not self._closed:
            self._closed = True
            self.sock.close()
            os.close(self.pidfd)


class Launcher:
    """One launcher process and the cells forked from it. Bound to the event loop that first uses it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._ids = itertools.count(1)
        self._exits: dict[int, asyncio.Future[CellExit]] = {}
        self._closed = False

    async def cell(self, join: Sequence[Path], thaw: Sequence[tuple[Path, str]] = ()) -> Cell:
        """Fork a child that enters the cgroups whose `cgroup.procs` files are in `join`.

        `thaw` are the freezer state files to release should this process die, and what to write there.
        """
        control = self._ensure()
        loop = asyncio.get_running_loop()
        number = next(self._ids)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        exited: asyncio.Future[CellExit] = loop.create_future()
        self._exits[number] = exited
        message = {
            "cell": number,
            "join": [str(path) for path in join],
            "thaw": [(str(path), value) for path, value in thaw],
        }
        try:
            with theirs:
                _send(control, json.dumps(message).encode(), [theirs.fileno()])
            async with asyncio.timeout(_READY_SECONDS):
                answer, fds = await receive(ours)
            if not answer:
                raise SandboxBroken("the launcher could not fork")
            body = json.loads(answer)
            if "error" in body:
                raise SandboxBroken(f"could not enter the control groups: {body['error']}")
            return Cell(id=number, pid=body["pid"], pidfd=fds[0], sock=ours, exit=exited)
        except BaseException as failure:
            ours.close()
            self._exits.pop(number, None)
            if isinstance(failure, OSError):  # TimeoutError is one
                raise SandboxBroken(f"the launcher does not answer: {failure}") from failure
            raise

    def _ensure(self) -> socket.socket:
        if self._closed:
            raise SandboxBroken("this sandbox backend was closed")
        if self._control is not None and self._process is not None and self._process.poll() is None:
            return self._control
        self._lost()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", str(_LAUNCHER), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={},
                cwd="/",
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        ours.setblocking(False)
        asyncio.get_running_loop().add_reader(ours.fileno(), self._readable)
        self._control = ours
        return ours

    def _readable(self) -> None:
        assert self._control is not None
        try:
            message = self._control.recv(_PACKET)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            message = b""
        if not message:
            self._lost()
            return
        body = json.loads(message)
        exited = self._exits.pop(body["cell"], None)
        if exited is not None and not exited.done():
            exited.set_result(CellExit(status=body["status"], cpu_seconds=body["cpu"]))

    def _lost(self) -> None:
        """The launcher is gone, and with it, by their parent-death signal, all that it started."""
        if self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control.fileno())
            self._control.close()
            self._control = None
        for exited in self._exits.values():
            if not exited.done():
                exited.set_result(CellExit(status=None))
        self._exits.clear()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    async def close(self) -> None:
        """End the launcher and everything below it. Idempotent."""
        self._closed = True
        process, control = self._process, self._control
        self._process = self._control = None
        if control is not None:
            asyncio.get_running_loop().remove_reader(control.fileno())
            control.close()
        if process is not None:
            try:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    await asyncio.to_thread(process.wait, _CLOSE_SECONDS)
            finally:
                process.kill()  # nothing happens where it has ended
                process.wait()
        self._lost()


def memory_file(content: bytes, name: str) -> int:
    """A memfd that holds `content`, to be read from its start; the caller closes it."""
    fd = os.memfd_create(f"kernelevo-{name}", os.MFD_CLOEXEC)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _send(sock: socket.socket, message: bytes, fds: Sequence[int]) -> None:
    sock.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds).tobytes())])


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    """One packet of a non-blocking SEQPACKET socket and its descriptors; an empty one when the other end has closed."""
    loop = asyncio.get_running_loop()
    size = array.array("i").itemsize
    while True:
        try:
            message, ancillary, _, _ = sock.recvmsg(_PACKET, socket.CMSG_LEN(4 * size))
        except BlockingIOError:
            readable: asyncio.Future[None] = loop.create_future()
            loop.add_reader(sock.fileno(), _settle, readable)
            try:
                await readable
            finally:
                loop.remove_reader(sock.fileno())
            continue
        except ConnectionResetError:
            return b"", []
        fds = array.array("i")
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(data[: len(data) - len(data) % size])
        return message, list(fds)
