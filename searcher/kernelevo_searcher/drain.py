"""The wish that a run end early, with nothing lost: what is under way comes back, and nothing new is begun.

Only carries the wish from whoever has it (a signal, a program) to those who work on the run; it knows neither.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

__all__ = ["Drain"]


class Drain:
    """One run's wish to end. Belongs to the event loop that the run works in."""

    def __init__(self) -> None:
        self._asked = False
        self._callbacks: list[Callable[[], None]] = []

    @property
    def asked(self) -> bool:
        """Whether the run is to end once what is under way has come back."""
        return self._asked

    def ask(self) -> None:
        """Have it end so. Asking again changes nothing."""
        if not self._asked:
            self._asked = True
            for callback in tuple(self._callbacks):
                callback()

    @contextmanager
    def telling(self, callback: Callable[[], None]) -> Iterator[None]:
        """Within, `callback` is called when the wish comes, or at once where it has come already."""
        self._callbacks.append(callback)
        try:
            if self._asked:
                callback()
            yield
        finally:
            self._callbacks.remove(callback)

    @asynccontextmanager
    async def preparing(self) -> AsyncIterator[None]:
        """Within, nothing is under way that is worth waiting for: the block is left, quietly, as soon as the wish comes."""
        loop = asyncio.get_running_loop()
        scope = asyncio.timeout(None)
        try:
            async with scope:
                with self.telling(lambda: scope.reschedule(loop.time())):
                    yield
        except TimeoutError:
            if not scope.expired():
                raise
