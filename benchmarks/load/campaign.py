"""Carries the requests out: all clients at once, and a server that is killed and started again when half is answered."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from server_process import NotMeasured

from kernelevo_api.channel import RetryPolicy
from kernelevo_api.client import AsyncEvaluatorClient
from kernelevo_api.errors import EvaluatorError, UnknownEvaluation
from kernelevo_api.types import Evaluation, Stage
from load.requests import Asked, Fate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from server_process import Server

    from kernelevo_api.types import Progress

PATIENT = RetryPolicy(queue_s=3600, unavailable_s=300)
"""Clients that outlive the server's restart."""
AWAY_S = 1.0
"""How long those who come back are away; less than the server's grace."""


@dataclass
class Course:
    """What happened."""

    told: dict[str, Evaluation] = field(default_factory=dict)
    """What clients were told in the end, by request id."""
    errors: dict[str, str] = field(default_factory=dict)
    """Requests whose client got an error instead."""
    acted: dict[Fate, int] = field(default_factory=dict)
    """How often somebody cancelled or went away before the answer was there."""
    resident_bytes: list[int] = field(default_factory=list)
    """The server's memory after each fiftieth of the answers."""
    killed_after: int | None = None
    """Answers that were there when the server was killed."""
    seconds: float = 0.0


async def carry_out(
    server: Server, asked: Sequence[Asked], *, kill: bool, tell: Callable[[str], None] = lambda _: None
) -> Course:
    """Have all of it asked at once, by one connection for each client; returns when every client has its answers or is gone.

    Raises:
        NotMeasured: so few were answered that the server was not killed.
    """
    course = Course()
    killer = asyncio.create_task(_kill_at_half(server, len(asked), course)) if kill else None
    began = time.monotonic()
    try:
        async with asyncio.TaskGroup() as group:
            for client in sorted({one.client for one in asked}):
                mine = [one for one in asked if one.client == client]
                group.create_task(_client(server, client, mine, course, len(asked), tell))
        if killer is not None:
            if course.killed_after is None:
                told, errors = len(course.told), list(course.errors.values())
                raise NotMeasured(f"{told} of {len(asked)} were answered, less than half; errors: {errors[:3]}")
            await killer
    finally:
        if killer is not None:
            killer.cancel()
    course.seconds = time.monotonic() - began
    return course


async def _kill_at_half(server: Server, count: int, course: Course) -> None:
    while len(course.told) < count // 2:  # noqa: ASYNC110 - nothing depends on when exactly
        await asyncio.sleep(0.01)
    course.killed_after = len(course.told)
    server.kill()
    server.start()
    await server.ready()


async def _client(
    server: Server, name: int, asked: Sequence[Asked], course: Course, count: int, tell: Callable[[str], None]
) -> None:
    async with AsyncEvaluatorClient(server.address, client_id=f"client-{name}", retry=PATIENT) as client:

        async def one(each: Asked) -> None:
            try:
                told = await _Call(client, each, course).live()
            except EvaluatorError as error:
                course.errors[each.request.request_id] = repr(error)
                return
            if told is not None:
                course.told[each.request.request_id] = told
                if len(course.told) % max(count // 50, 1) == 0:
                    course.resident_bytes.append(server.resident_bytes() or 0)
                    tell(f"{len(course.told)} of {count} answered, {course.resident_bytes[-1] >> 20} MiB")

        await asyncio.gather(*map(one, asked))


class _Call:
    """One request's life on the client's side."""

    def __init__(self, client: AsyncEvaluatorClient, asked: Asked, course: Course) -> None:
        self._client = client
        self._asked = asked
        self._course = course
        self._accepted, self._running = asyncio.Event(), asyncio.Event()

    async def live(self) -> Evaluation | None:
        """The answer; `None` for a client that left."""
        task = asyncio.create_task(self._ask())
        fate = self._asked.fate
        if fate is Fate.WAIT or not await self._moment(task):
            return await task
        self._course.acted[fate] = self._course.acted.get(fate, 0) + 1
        if fate is Fate.CANCEL:
            return await self._cancel(task)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, EvaluatorError):
            await task
        if fate is Fate.LEAVE:
            return None
        await asyncio.sleep(AWAY_S)
        return await self._ask()

    async def _ask(self) -> Evaluation:
        return await self._client.evaluate(self._asked.request, on_progress=self._seen)

    def _seen(self, progress: Progress) -> None:
        # Only what is accepted may not be lost: who goes away before that was promised nothing.
        self._accepted.set()
        if progress.stage not in (Stage.ADMIT, Stage.QUEUE):
            self._running.set()

    async def _moment(self, task: asyncio.Task[Evaluation]) -> bool:
        """Wait for the moment to act; whether it came before the answer."""
        event = self._running if self._asked.when_running else self._accepted
        waiting = asyncio.create_task(event.wait())
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if not self._asked.when_running:
            await asyncio.wait([task], timeout=self._asked.delay_s)
        return not task.done()

    async def _cancel(self, task: asyncio.Task[Evaluation]) -> Evaluation:
        request_id = self._asked.request.request_id
        while not task.done():
            try:
                _, found = await self._client.cancel_evaluation(request_id=request_id)
            except UnknownEvaluation:
                # Accepted by a server that was killed, and not taken up by its next life yet.
                await asyncio.sleep(0.05)
            else:
                assert found is not None
                break
        return await task
