"""Length-limited messages, with file descriptors, over a Unix stream socket.

A frame is four bytes of length (big-endian), one byte that counts descriptors, and the payload. The descriptors ride on the
frame's first byte. Whoever reads from an untrusted side uses `receive`, which takes no descriptors: the kernel closes any that
were sent. Nothing here parses a payload.

    ChannelError
    ├── ChannelClosed    the other side is gone
    ├── ChannelTimeout   nothing whole arrived before the deadline
    └── FrameInvalid     the other side broke the framing: descriptors where none may be
        └── FrameTooLong     or a message longer than what is taken
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import select
import socket
import struct
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

HEADER = struct.Struct(">IB")
MAXIMUM_DESCRIPTORS = 16
"""Descriptors in one frame; the kernel's own bound is 253."""
_ANCILLARY_BYTES = socket.CMSG_SPACE(MAXIMUM_DESCRIPTORS * array.array("i").itemsize)


class ChannelError(Exception):
    """Root of what a channel raises."""


class ChannelClosed(ChannelError):
    """The other side is gone."""


class ChannelTimeout(ChannelError):
    """Nothing whole arrived before the deadline."""


class FrameInvalid(ChannelError):
    """The other side broke the framing."""


class FrameTooLong(FrameInvalid):
    """A message longer than what is taken."""


def _header(payload: bytes, fds: Sequence[int]) -> bytes:
    if len(fds) > MAXIMUM_DESCRIPTORS:
        raise ValueError(f"at most {MAXIMUM_DESCRIPTORS} descriptors in a frame, not {len(fds)}")
    return HEADER.pack(len(payload), len(fds))


def _parse_header(header: bytes, limit: int) -> tuple[int, int]:
    length, count = HEADER.unpack(header)
    if length > limit:
        raise FrameTooLong(f"a message of {length} bytes; at most {limit} are taken")
    return length, count


def _descriptors(ancillary: Sequence[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return list(fds)


class Channel:
    """The blocking side: the referee's and the runner's. One thread at a time."""

    def __init__(self, sock: socket.socket, limit: int) -> None:
        """`limit`: longest payload taken, in bytes."""
        self._sock = sock
        self._limit = limit
        self.spin = False
        """Whether to ask again and again instead of sleeping while an answer is due: it wakes sooner, and takes a core."""
        sock.setblocking(False)
        self._poll = select.poll()

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._sock.fileno()

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()

    def _wait(self, event: int, deadline: float | None) -> None:
        if self.spin and event == select.POLLIN:
            if deadline is not None and time.monotonic() > deadline:
                raise ChannelTimeout("no answer before the deadline")
            return
        self._poll.register(self._sock, event)
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        if not self._poll.poll(timeout):
            raise ChannelTimeout("no answer before the deadline")

    def send(self, payload: bytes, fds: Sequence[int] = (), deadline: float | None = None) -> None:
        """Send one frame; `deadline` is a `time.monotonic` moment."""
        frame = memoryview(_header(payload, fds) + payload)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            while frame:
                try:
                    sent = self._sock.sendmsg([frame], ancillary)
                except BlockingIOError:
                    self._wait(select.POLLOUT, deadline)
                    continue
                ancillary = []
                frame = frame[sent:]
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def _exactly(self, count: int, deadline: float | None) -> bytes:
        data = bytearray()
        while len(data) < count:
            try:
                # Plain recv takes no descriptors: any that an untrusted side sent are closed by the kernel.
                piece = self._sock.recv(min(count - len(data), 1 << 20))
            except BlockingIOError:
                self._wait(select.POLLIN, deadline)
                continue
            except OSError as error:
                raise ChannelClosed(str(error)) from error
            if not piece:
                raise ChannelClosed("the other side closed the channel")
            data += piece
        return bytes(data)

    def receive(self, deadline: float | None = None) -> bytes:
        """One payload from a side that may send no descriptors."""
        length, count = _parse_header(self._exactly(HEADER.size, deadline), self._limit)
        if count:
            raise FrameInvalid("descriptors where none may be")
        return self._exactly(length, deadline)

    def receive_with_fds(self, deadline: float | None = None) -> tuple[bytes, list[int]]:
        """One payload and its descriptors, from a trusted side."""
        fds: list[int] = []
        header = bytearray()
        try:
            while len(header) < HEADER.size:
                try:
                    # `socket.recv_fds` drops its flags, and with them close-on-exec.
                    piece, ancillary, _, _ = self._sock.recvmsg(
                        HEADER.size - len(header), _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
                    )
                except BlockingIOError:
                    self._wait(select.POLLIN, deadline)
                    continue
                except OSError as error:
                    raise ChannelClosed(str(error)) from error
                fds += _descriptors(ancillary)
                if not piece:
                    raise ChannelClosed("the other side closed the channel")
                header += piece
            length, count = _parse_header(bytes(header), self._limit)
            if count != len(fds):
                raise FrameInvalid(f"{len(fds)} descriptors arrived, {count} were announced")
            return self._exactly(length, deadline), fds
        except BaseException:
            for fd in fds:
                with contextlib.suppress(OSError):
                    os.close(fd)
            raise


class AsyncChannel:
    """The event loop's side: the server's. Takes no descriptors; sends them."""

    def __init__(self, sock: socket.socket, limit: int) -> None:
        self._sock = sock
        self._limit = limit
        sock.setblocking(False)

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()

    def detach(self) -> socket.socket:
        """Give the socket up, to be handed to another process. Nothing is buffered here."""
        return self._sock

    async def send(self, payload: bytes, fds: Sequence[int] = ()) -> None:
        """Send one frame."""
        loop = asyncio.get_running_loop()
        header = _header(payload, fds)
        try:
            if fds:
                # Five bytes into an idle socket's buffer: written whole or not at all.
                while True:
                    try:
                        socket.send_fds(self._sock, [header], list(fds))
                        break
                    except BlockingIOError:
                        await asyncio.sleep(0.001)
                await loop.sock_sendall(self._sock, payload)
            else:
                await loop.sock_sendall(self._sock, header + payload)
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    async def _exactly(self, count: int) -> bytes:
        loop = asyncio.get_running_loop()
        data = bytearray()
        while len(data) < count:
            try:
                piece = await loop.sock_recv(self._sock, min(count - len(data), 1 << 20))
            except OSError as error:
                raise ChannelClosed(str(error)) from error
            if not piece:
                raise ChannelClosed("the other side closed the channel")
            data += piece
        return bytes(data)

    async def receive(self) -> bytes:
        """One payload. Cancel-safe only between frames: a caller that gives up must close the channel."""
        length, count = _parse_header(await self._exactly(HEADER.size), self._limit)
        if count:
            raise FrameInvalid("descriptors where none may be")
        return await self._exactly(length)


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected Unix stream sockets."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
