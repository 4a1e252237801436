"""Runs work: bounded, fair, each piece once however many wait for it, stopped when nobody does.

Knows nothing of requests or evaluations. A piece of work has a key; who submits a key that is under way joins it. Each who waits
holds a `Ticket`; when the last ticket is given back before the end, the work leaves the queue or is cancelled.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from kernelevo_api.errors import Draining, QueueFull
from kernelevo_api.types import Stage
from kernelevo_evaluator.queue import FairQueue, Full

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kernelevo_evaluator.executor import ProgressCallback
    from kernelevo_evaluator.queue import Quota

T = TypeVar("T")

Listener = Callable[[Stage, str, int | None], None]
"""Told of a stage that begins, with one line for people and, while queued, how many are ahead."""
Action = Callable[["ProgressCallback"], Awaitable[T]]

_FIRST_ESTIMATE_S = 5.0
_SHORTEST_DELAY_S, _LONGEST_DELAY_S = 1.0, 60.0


class Work(Generic[T]):
    """One piece of work, queued, running or ended."""

    def __init__(self, key: str, client: str, action: Action[T], *, alone: bool = False) -> None:
        self.key = key
        self.client = client
        self.action = action
        self.alone = alone
        self.tickets: set[Ticket[T]] = set()
        self.latest: tuple[Stage, str] = (Stage.QUEUE, "waiting for its turn")
        self.result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.ended = asyncio.Event()
        """Set when nothing of it runs any more."""
        self.task: asyncio.Task[None] | None = None
        self.queued_at = time.monotonic()
        self.context = contextvars.copy_context()
        """Of who asked first; what it starts would else run in that of whoever made room for it."""


class Ticket(Generic[T]):
    """One who waits for a piece of work. `give_back` is safe at any time and any number of times."""

    def __init__(self, scheduler: Scheduler, work: Work[T], listener: Listener | None) -> None:
        self._scheduler = scheduler
        self._work = work
        self.listener = listener

    async def wait(self) -> T:
        """The work's result, or what it raised. Being cancelled here stops waiting, not the work."""
        return await asyncio.shield(self._work.result)

    def give_back(self) -> bool:
        """Stop waiting; whether that stopped the work, because nobody else waits for it."""
        return self._scheduler._give_back(self._work, self)

    async def ended(self) -> None:
        """Returns when nothing of the work runs any more."""
        await self._work.ended.wait()

    @property
    def place(self) -> tuple[Stage, str, int | None]:
        """Where the work is: stage, one line for people, and how many are ahead while it is queued."""
        return self._scheduler._place(self._work)


class Scheduler:
    """Runs up to `concurrency` pieces of work at once, the others wait in a fair queue.

    Args:
        concurrency: asked each time; call `pump` when it has grown.
    """

    def __init__(self, concurrency: Callable[[], int], capacity: int, capacity_per_client: int) -> None:
        self._concurrency = concurrency
        self._queue: FairQueue[Work[Any]] = FairQueue(capacity, capacity_per_client)
        self._works: dict[str, Work[Any]] = {}
        self._running: set[Work[Any]] = set()
        self._next: Work[Any] | None = None
        """What is to run alone and whose turn has come: nothing else begins until it has run."""
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._hurry = asyncio.Event()
        self._mean_s = _FIRST_ESTIMATE_S
        self.on_wait: Callable[[float], None] = lambda seconds: None
        """Told how long a piece of work waited when it begins, in the context of who asked first."""

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def queued(self) -> int:
        return len(self._queue) + (self._next is not None)

    def set_quotas(self, quotas: Mapping[str, Quota]) -> None:
        """Give clients bounds of their own; what waits or runs already stays."""
        self._queue.quotas = quotas
        self.pump()

    @property
    def draining(self) -> bool:
        return self._draining

    def check(self, client: str, others: int = 0, others_of_client: int = 0) -> None:
        """Raise what `submit` would raise for new work of this client, if so many others were queued already."""
        if self._draining:
            raise Draining("this evaluator is shutting down; try another, or later")
        try:
            self._queue.check(client, others, others_of_client)
        except Full as full:
            raise QueueFull(str(full), retry_delay=self._delay()) from full

    def joins(self, key: str) -> bool:
        """Whether work of this key is under way."""
        return key in self._works

    def submit(
        self,
        key: str,
        client: str,
        action: Action[T],
        listener: Listener | None = None,
        *,
        promised: bool = False,
        alone: bool = False,
    ) -> Ticket[T]:
        """Join the work of this key, or queue it as new.

        Args:
            promised: it goes in beyond any bound, as work of an earlier life does.
            alone: nothing else runs while it does.

        Raises:
            QueueFull: there is no room; `retry_delay` says when there may be.
            Draining: the scheduler takes no more work.
        """
        work: Work[T] | None = self._works.get(key)
        if work is None:
            if not promised or self._draining:
                self.check(client)
            work = Work(key, client, action, alone=alone)
            work.result.add_done_callback(_retrieve)
            self._works[key] = work
            if promised:
                self._queue.force(client, work)
            else:
                self._queue.put(client, work)
            self._idle.clear()
        ticket = Ticket(self, work, listener)
        work.tickets.add(ticket)
        if listener is not None:
            listener(*self._place(work))
        self.pump()
        return ticket

    async def drain(self, seconds: float) -> None:
        """Take no more work, drop what is queued, let what runs finish within `seconds`, then cancel it."""
        self._draining = True
        apart, self._next = self._next, None
        while (work := apart or self._queue.take()) is not None:
            apart = None
            self._end(
                work, Draining("this evaluator is shutting down; the request is kept and goes on at its next start")
            )
        idle, hurry = asyncio.create_task(self._idle.wait()), asyncio.create_task(self._hurry.wait())
        try:
            await asyncio.wait([idle, hurry], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            idle.cancel()
            hurry.cancel()
        for work in list(self._running):
            if not work.result.done():
                work.result.set_exception(Draining("this evaluator was shut down before the work ended"))
            if work.task is not None:
                work.task.cancel()
        await self._idle.wait()

    def hurry(self) -> None:
        """Let `drain` wait no longer."""
        self._hurry.set()

    def pump(self) -> None:
        """Begin what there is room for."""
        moved = False
        while (work := self._first()) is not None:
            self._running.add(work)
            work.context.run(self.on_wait, time.monotonic() - work.queued_at)
            work.task = asyncio.create_task(self._run(work), name=f"work {work.key[:12]}", context=work.context)
            moved = True
        if moved:
            for other in self._works.values():
                if other.task is None:
                    self._tell(other)

    def _first(self) -> Work[Any] | None:
        """What is to begin now."""
        running = self._running
        if len(running) >= self._concurrency() or any(work.alone for work in running):
            return None
        work, self._next = self._next or self._queue.take(self._at_their_bound()), None
        if work is not None and work.alone and running:
            self._next = work
            return None
        return work

    def _at_their_bound(self) -> set[str]:
        running = Counter(work.client for work in self._running)
        return {
            client
            for client, quota in self._queue.quotas.items()
            if quota.running is not None and running[client] >= quota.running
        }

    async def _run(self, work: Work[Any]) -> None:
        began = time.monotonic()

        def progress(stage: Stage, message: str) -> None:
            work.latest = (stage, message)
            self._tell(work)

        error: BaseException | None = None
        result: Any = None
        try:
            result = await work.action(progress)
        except asyncio.CancelledError as cancelled:
            error = cancelled
        except Exception as raised:
            error = raised
        finally:
            self._running.discard(work)
            self._mean_s += 0.2 * (time.monotonic() - began - self._mean_s)
            self._end(work, error, result)
            self.pump()

    def _end(self, work: Work[Any], error: BaseException | None, result: Any = None) -> None:
        if self._works.get(work.key) is work:
            del self._works[work.key]
        if not work.result.done():
            if isinstance(error, asyncio.CancelledError):
                work.result.cancel()
            elif error is not None:
                work.result.set_exception(error)
            else:
                work.result.set_result(result)
        work.ended.set()
        if not self._works and not self._running:
            self._idle.set()

    def _give_back(self, work: Work[Any], ticket: Ticket[Any]) -> bool:
        if ticket not in work.tickets:
            return False
        work.tickets.discard(ticket)
        if work.tickets or work.result.done():
            return False
        # Out of the table at once: an equal request from now on is new work, not this one's end.
        if self._works.get(work.key) is work:
            del self._works[work.key]
        if work.task is not None:
            work.task.cancel()
        elif work is self._next or self._queue.remove(work):
            self._next = None if work is self._next else self._next
            self._end(work, asyncio.CancelledError())
            self.pump()
            for other in self._works.values():
                if other.task is None:
                    self._tell(other)
        return True

    def _tell(self, work: Work[Any]) -> None:
        place = self._place(work)
        for ticket in tuple(work.tickets):
            if ticket.listener is not None:
                ticket.listener(*place)

    def _place(self, work: Work[Any]) -> tuple[Stage, str, int | None]:
        if work is self._next:
            return (*work.latest, 0)
        return (*work.latest, self._queue.position(work) if work.task is None else None)

    def _delay(self) -> timedelta:
        """When a place is likely to be free: the time in which one piece of work ends."""
        seconds = min(max(self._mean_s / max(1, self._concurrency()), _SHORTEST_DELAY_S), _LONGEST_DELAY_S)
        return timedelta(seconds=math.ceil(seconds * 10) / 10)


def _retrieve(future: asyncio.Future[Any]) -> None:
    # Work that nobody waits for any more may fail without anyone to tell.
    if not future.cancelled():
        future.exception()
