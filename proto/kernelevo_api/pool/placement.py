"""Where a request of a pool goes: the evaluator that holds the least for its size, or the next that answers.

Chooses and waits; sends nothing, and never decides that a request is hopeless because evaluators are away.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernelevo_api.pool.devices import describe
from kernelevo_api.pool.errors import NoEvaluator, NotEvaluated

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from kernelevo_api.errors import CallRefused
    from kernelevo_api.pool.endpoint import Endpoint, PoolSettings
    from kernelevo_api.pool.members import Members
    from kernelevo_api.types import DeviceRequirement, EvaluateRequest


@dataclass(slots=True)
class Attempt:
    """What one request has met so far."""

    preferred: str
    patience_s: float | None = None
    """How long to wait while no evaluator answers."""
    faults: int = 0
    avoid: set[Endpoint] = field(default_factory=set)
    """Failed at this request; asked again only where there is no other."""
    refused: dict[Endpoint, CallRefused] = field(default_factory=dict)
    """Will not take it at all: a limit or a language of their own."""
    lost: list[tuple[str, str]] = field(default_factory=list)
    """Evaluators that went away while they ran it, by name and life: a connection that breaks is no life that ends."""
    life: str = ""
    """Life of the evaluator that holds it, as far as that says."""
    running: bool = False


class Placement:
    """Chooses among the members of a pool."""

    def __init__(self, members: Members, settings: PoolSettings, revive: Callable[[], None] | None) -> None:
        self.on_wait: Callable[[str], None] | None = None
        self._members = members
        self._settings = settings
        self._revive = revive
        self._waiting = 0

    def able(self, request: EvaluateRequest) -> list[Endpoint]:
        """Those that have the device and take the problem, whether they answer at the moment or not."""
        digest = request.problem_digest or ""
        return [one for one in self._members.of_use if one.share(request.device) and digest not in one.refused]

    def others(self, endpoint: Endpoint, request: EvaluateRequest) -> bool:
        """Whether another evaluator could take the request now."""
        now = asyncio.get_running_loop().time()
        return any(one is not endpoint and one.answers(now) for one in self.able(request))

    async def available(self, request: EvaluateRequest, attempt: Attempt) -> Endpoint:
        """An evaluator that this request may be sent to, as soon as there is one.

        Raises:
            NotEvaluated: no evaluator will ever take it.
            NoEvaluator: none answered for as long as the request has patience.
        """
        chosen = await self._free(request, attempt)
        if chosen is not None:
            return chosen
        loop = asyncio.get_running_loop()
        end = loop.time() + attempt.patience_s if attempt.patience_s is not None else None
        async with self._telling_that_it_waits():
            while chosen is None:
                await self._seek(request)
                chosen = await self._free(request, attempt)
                if chosen is None and end is not None and loop.time() >= end:
                    raise NoEvaluator(self._silence())
        return chosen

    async def _free(self, request: EvaluateRequest, attempt: Attempt) -> Endpoint | None:
        """The best that answers, after a wait where all of them are full; `None` where none answers."""
        loop = asyncio.get_running_loop()
        while True:
            news = self._members.news
            able = [one for one in self.able(request) if one not in attempt.refused]
            if not able:
                self._check_feasible(request, attempt)
            answering = [one for one in able if one.answers(loop.time())]
            if not answering:
                return None
            free = [one for one in answering if loop.time() >= one.busy_until]
            chosen = least([one for one in free if one not in attempt.avoid] or free, request.device, attempt.preferred)
            if chosen is not None:
                return chosen
            await _first(news, min(one.busy_until for one in answering) - loop.time())

    def _check_feasible(self, request: EvaluateRequest, attempt: Attempt) -> None:
        """A device that no evaluator has is not waited for, unless it was there before."""
        if attempt.refused:
            error = next(iter(attempt.refused.values()))
            raise NotEvaluated(error.reason.value, str(error))
        known = all(one.capabilities is not None for one in self._members.endpoints)
        if request.device != self._members.device and known:
            raise NotEvaluated("unsupported", f"no evaluator has a healthy device that is {describe(request.device)}")

    async def _seek(self, request: EvaluateRequest) -> None:
        """One round of looking for an evaluator that answers; returns when there may be one."""
        news = self._members.news
        if self._revive is not None:
            self._revive()
        down = [one for one in self._members.endpoints if not one.up and not one.leaving]
        if True in await asyncio.gather(*(self._members.look(one) for one in down)):
            return
        now = asyncio.get_running_loop().time()
        resting = [one.rest_until - now for one in self.able(request) if one.up]
        await _first(news, min([self._settings.probe_s, *resting]))

    @asynccontextmanager
    async def _telling_that_it_waits(self) -> AsyncIterator[None]:
        self._waits(1)
        try:
            yield
        finally:
            self._waits(-1)

    def _waits(self, change: int) -> None:
        before, self._waiting = self._waiting, self._waiting + change
        if self.on_wait is not None and (before == 0) != (self._waiting == 0):
            self.on_wait(self._silence() if self._waiting else "")

    def _silence(self) -> str:
        troubles = "; ".join(one.trouble for one in self._members.endpoints if one.trouble)
        return f"no evaluator answers: {troubles}"


def least(endpoints: Sequence[Endpoint], device: DeviceRequirement | None, preferred: str) -> Endpoint | None:
    """The one that holds the least of ours for its size, unless the preferred one is among them."""
    for endpoint in endpoints:
        if endpoint.name == preferred:
            return endpoint
    return min(endpoints, key=lambda one: (one.outstanding / max(1, one.slots(device)), one.draw), default=None)


async def _first(event: asyncio.Event, seconds: float) -> None:
    """Until the event, or for so many seconds."""
    try:
        async with asyncio.timeout(max(0.0, seconds) + 0.001):
            await event.wait()
    except TimeoutError:
        return
