"""Silence on a lane's cores while a timing runs: builds, imports and spares are frozen, and their time does not count."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from kernelevo_sandbox import SandboxProcess


T = TypeVar("T")


class Quiet:
    """The background processes of one host, frozen together while at least one timing is on."""

    def __init__(self) -> None:
        self._background: set[SandboxProcess] = set()
        self._depth = 0
        self._since = 0.0
        self._total = 0.0
        self._lock = asyncio.Lock()

    async def add(self, process: SandboxProcess) -> None:
        """From now on `process` is background: frozen at once if a timing is on."""
        async with self._lock:
            self._background.add(process)
            if self._depth:
                await process.freeze()

    async def remove(self, process: SandboxProcess, *, thaw: bool = True) -> None:
        """`process` is no longer background (it ended, or a lane took it)."""
        async with self._lock:
            self._background.discard(process)
            if thaw and self._depth:
                await process.thaw()

    async def begin(self) -> None:
        """A timing begins: returns when everything in the background stands still."""
        async with self._lock:
            self._depth += 1
            if self._depth == 1:
                self._since = time.monotonic()
                await asyncio.gather(*(process.freeze() for process in self._background))

    async def end(self) -> None:
        """A timing ended."""
        async with self._lock:
            self._depth -= 1
            if self._depth == 0:
                self._total += time.monotonic() - self._since
                await asyncio.gather(*(process.thaw() for process in self._background))

    @property
    def timing(self) -> bool:
        """Whether at least one timing is on."""
        return self._depth > 0

    def elapsed(self) -> float:
        """A clock in seconds that stands still while a timing is on: for the limits of background work."""
        now = time.monotonic()
        return now - self._total - (now - self._since if self._depth else 0.0)


class Deadline:
    """A limit on background work, by the clock that stands still while a timing is on."""

    def __init__(self, quiet: Quiet, seconds: float) -> None:
        self._quiet = quiet
        self._end = quiet.elapsed() + seconds

    def extend(self, seconds: float) -> None:
        """Give back time that passed through no doing of the work's own."""
        self._end += seconds

    def remaining(self) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self._end - self._quiet.elapsed())

    async def result(self, task: asyncio.Task[T]) -> T:
        """The task's result; a task that is not done in time is cancelled.

        Raises:
            TimeoutError: the limit is used up.
        """
        try:
            while not task.done():
                left = self.remaining()
                if left <= 0:
                    raise TimeoutError
                await asyncio.wait({task}, timeout=left)
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
