"""Signals: what one Ctrl-C does to a run, and what another one does."""

from __future__ import annotations

import asyncio
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from kernelevo_searcher.drain import Drain

__all__ = ["run_draining"]

T = TypeVar("T")


def run_draining(work: Coroutine[Any, Any, T], drain: Drain, tell: Callable[[], None]) -> T:
    """`asyncio.run`, in which the first Ctrl-C asks for a drain, the second cancels the work, and a third waits for nothing.

    SIGTERM counts as one Ctrl-C. A signal that this process was started to ignore, as a job in the background is, stays ignored.

    Args:
        tell: called once the drain was asked for.

    Raises:
        KeyboardInterrupt: the work was cancelled.
    """
    received = 0
    task: asyncio.Task[T] | None = None

    async def main() -> T:
        nonlocal task
        task = asyncio.current_task()
        return await work

    def act(number: int) -> None:
        if number == 1:
            drain.ask()
            tell()
        elif task is not None:
            task.cancel()

    with asyncio.Runner() as runner:
        loop = runner.get_loop()

        def handle(_signal: int, _frame: object) -> None:
            nonlocal received
            received += 1
            if received > 2:
                raise KeyboardInterrupt
            # In the loop, between two steps of the work: never in the middle of a write.
            loop.call_soon_threadsafe(act, received)

        with _handling(handle):
            try:
                return runner.run(main())
            except asyncio.CancelledError:
                raise KeyboardInterrupt from None


@contextmanager
def _handling(handler: Callable[[int, object], None]) -> Iterator[None]:
    numbers = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) is not signal.SIG_IGN]
    before = [(number, signal.signal(number, handler)) for number in numbers]
    try:
        yield
    finally:
        for number, previous in before:
            signal.signal(number, previous)
