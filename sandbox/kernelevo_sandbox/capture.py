"""Bounded capture of one output stream: its head and tail are kept, everything is counted. Never waits, never grows."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from kernelevo_sandbox.contract import Captured

if TYPE_CHECKING:
    from collections.abc import Callable

KEPT_BYTES = 32 * 1024
"""How much of the head and of the tail of each stream is kept."""
_READ_BYTES = 64 * 1024


class Capture:
    """Reads a pipe through the event loop until its end or until `close`."""

    def __init__(self, fd: int, grew: Callable[[], None]) -> None:
        self._fd = fd
        self._grew = grew
        self._open = True
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0
        os.set_blocking(fd, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(fd, self._readable)

    def _readable(self) -> None:
        # One read a turn of the loop: a flood must not starve other tasks.
        if self._read() is False:
            self._loop.remove_reader(self._fd)

    def _read(self) -> bool:
        """Whether there may be more to come."""
        try:
            chunk = os.read(self._fd, _READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False
        if not chunk:
            return False
        self.total += len(chunk)
        room = KEPT_BYTES - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[max(room, 0) :]
        if len(self._tail) > KEPT_BYTES:
            del self._tail[: len(self._tail) - KEPT_BYTES]
        self._grew()
        return True

    def finish(self) -> None:
        """Take what the pipe still holds (bounded by its capacity: every writer is gone) and close it. Idempotent."""
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._fd)
        before = -1
        while before != self.total:
            before = self.total
            self._read()
        os.close(self._fd)

    def captured(self) -> Captured:
        """The stream so far."""
        return Captured(head=bytes(self._head), tail=bytes(self._tail), total_bytes=self.total)
