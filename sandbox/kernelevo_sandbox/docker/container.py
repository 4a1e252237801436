"""One container, from its creation to its removal. It runs one program, or none."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelevo_sandbox import launcher
from kernelevo_sandbox.contract import SandboxBroken
from kernelevo_sandbox.docker.configuration import LAUNCHER, SOCKET
from kernelevo_sandbox.docker.tree import ContainerTree
from kernelevo_sandbox.mounts import etc_files
from kernelevo_sandbox.spawning import CellExit, executed, hand_over, receive
from kernelevo_sandbox.supervision import StatusPipe

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from kernelevo_sandbox.docker.engine import Engine
    from kernelevo_sandbox.spawning import Cell, Request

_READY_SECONDS = 30.0
_LOOK_SECONDS = 1.0
_EXPLAIN_SECONDS = 5.0
_EXPLAIN_PAUSE_SECONDS = 0.02


class Folder:
    """What is mounted into one container: the first process's source and socket, and files of /etc that name its user."""

    def __init__(self, place: Path, uid: int) -> None:
        """`place` is made; nobody but root may reach it on the host."""
        place.mkdir(mode=0o700)
        self.place = place
        self.box = place / "box"
        self.etc = place / "etc"
        try:
            for folder in (self.box, self.etc):
                folder.mkdir()
                folder.chmod(0o755)
            _write(self.box / LAUNCHER, Path(launcher.__file__).read_text())
            for name, content in _etc(uid).items():
                _write(self.etc / name, content)
        except BaseException:
            self.remove()
            raise

    def etc_files(self) -> dict[str, Path]:
        """The files of /etc by name."""
        return {name: self.etc / name for name in _etc(0)}

    def listen(self) -> socket.socket:
        """The socket that the container's first process connects to."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            listener.setblocking(False)
            folder = os.open(self.box, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                # An address holds about 100 characters, and a folder for temporary files may have more.
                listener.bind(f"/proc/self/fd/{folder}/{SOCKET}")
            finally:
                os.close(folder)
            # The folder around it is closed to everyone on the host, and mounted into one container.
            (self.box / SOCKET).chmod(0o666)
            listener.listen(1)
        except BaseException:
            listener.close()
            raise
        return listener

    def disconnect(self) -> None:
        """Nobody else shall connect."""
        (self.box / SOCKET).unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove it from the host. Blocks, briefly; idempotent."""
        shutil.rmtree(self.place, ignore_errors=True)


def _etc(uid: int) -> dict[str, str]:
    # An engine would otherwise put the host's name servers there.
    return etc_files(str(uid)) | {"resolv.conf": ""}


def _write(path: Path, content: str) -> None:
    path.write_text(content)
    path.chmod(0o644)


class Container:
    """A started container whose first process waits for a program, and is that program's parent later.

    Fulfils `kernelevo_sandbox.supervision.Root`.
    """

    def __init__(
        self, engine: Engine, name: str, sock: socket.socket, pid: int, pidfd: int, tree: ContainerTree
    ) -> None:
        self.name = name
        self.pid = pid
        self.tree = tree
        self.guard: Cell | None = None
        """A process on the host that thaws the tree should the evaluator die while it is frozen."""
        self._engine = engine
        self._sock: socket.socket | None = sock
        self._pidfd = pidfd
        self._status: StatusPipe | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self.exit: asyncio.Future[CellExit] = self._loop.create_future()
        # A namespace's first process counts as ended when every other one has.
        self._loop.add_reader(pidfd, self._ended)

    @property
    def usable(self) -> bool:
        """Whether it still waits for its program."""
        return self._sock is not None and not self.exit.done()

    async def execute(self, request: Request) -> StatusPipe:
        """Hand over the program; returns, once it has been executed, where its end is told.

        Raises:
            SandboxBroken: it could not be.
        """
        assert self._sock is not None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            ours.setblocking(False)
            with theirs:
                hand_over(self._sock, request, errors=theirs.fileno())
            await executed(ours, request.argv[0])
        if self.exit.done():
            raise SandboxBroken("the container ended before its program began")
        self._status = status = StatusPipe(self._sock.detach())
        self._sock = None
        self._spawn(self._end_with_program(status))
        return status

    def signal(self, number: int) -> None:
        """End the first process, whatever the number: it heeds no other signal."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Give up this process's handles. Idempotent."""
        for task in self._tasks:
            task.cancel()
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        if self.guard is not None:
            self.guard.signal(signal.SIGKILL)
            self.guard.close()
            self.guard = None

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=f"container {self.name[:12]}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end_with_program(self, status: StatusPipe) -> None:
        if await status.wait_for("wait-status") is not None:
            self.tree.kill()

    def _ended(self) -> None:
        self._loop.remove_reader(self._pidfd)
        if self._status is not None:
            self._status.look()
        if self.tree.killed or (self._status is not None and self._status.get("wait-status") is not None):
            self.exit.set_result(CellExit(status=signal.SIGKILL))
        else:
            self._spawn(self._explain())

    async def _explain(self) -> None:
        """Neither its program's end nor we have ended it: what does the engine know?"""
        exit_ = CellExit(status=None)
        try:
            async with asyncio.timeout(_EXPLAIN_SECONDS):
                while (state := await self._engine.state(self.name)).running:  # noqa: ASYNC110  what is awaited is the engine
                    await asyncio.sleep(_EXPLAIN_PAUSE_SECONDS)
            code = state.exit_code
            exit_ = CellExit(status=code - 128 if code > 128 else code << 8, out_of_memory=state.out_of_memory)
        except (SandboxBroken, TimeoutError):
            pass
        finally:
            if not self.exit.done():
                self.exit.set_result(exit_)


async def connect(engine: Engine, name: str, folder: Folder, listener: socket.socket) -> Container:
    """Wait until a started container's first process is ready, and take its side of the socket.

    Raises:
        SandboxBroken: it did not become so; says what it wrote.
    """
    loop = asyncio.get_running_loop()
    began = time.monotonic()
    while True:
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                sock, _ = await loop.sock_accept(listener)
            break
        except TimeoutError:
            state = await engine.state(name)
            if not state.running or time.monotonic() - began > _READY_SECONDS:
                said = (state.error or await engine.log(name)).strip()
                raise SandboxBroken(
                    f"the container did not become ready (code {state.exit_code}): {said[-1000:]}"
                ) from None
    pidfd = -1
    try:
        folder.disconnect()
        sock.setblocking(False)
        # The kernel's word on who connected, in this process's own numbers.
        pid, _, _ = struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if pid <= 0:
            raise SandboxBroken("the container's processes cannot be seen from here: run on the engine's own host")
        with _gone("the container ended as soon as it was ready"):
            pidfd = os.pidfd_open(pid)
        async with asyncio.timeout(_READY_SECONDS):
            ready, _ = await receive(sock)
        if not ready:
            raise SandboxBroken("the container ended as soon as it was ready")
        return Container(engine, name, sock, pid, pidfd, ContainerTree(pid))
    except BaseException as failure:
        sock.close()
        if pidfd >= 0:
            os.close(pidfd)
        if isinstance(failure, TimeoutError):
            raise SandboxBroken("the container connected and then said nothing") from failure
        raise


@contextlib.contextmanager
def _gone(message: str) -> Iterator[None]:
    try:
        yield
    except ProcessLookupError as failure:
        raise SandboxBroken(message) from failure
