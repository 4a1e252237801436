"""One evaluator as a pool sees it: what it can do, how much of ours it holds, and whether it may get more."""

from __future__ import annotations

import asyncio
import random
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from kernelevo_api.pool.devices import fits

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from kernelevo_api.pool.discovery import Place
    from kernelevo_api.types import (
        Capabilities,
        DeviceRequirement,
        EvaluateRequest,
        Evaluation,
        Problem,
        ProblemReport,
        Progress,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """Numbers of a pool, in seconds unless they say otherwise."""

    probe_s: float = 2.0
    """Between two looks at an evaluator that is gone; doubles up to `longest_probe_s`."""
    longest_probe_s: float = 30.0
    look_timeout_s: float = 10.0
    """How long such a look may take."""
    refresh_s: float = 10.0
    """Between two looks at names and files."""
    rest_s: float = 1.0
    """How long an evaluator that failed is left alone; doubles up to `longest_rest_s` while it goes on failing."""
    longest_rest_s: float = 300.0
    faults_in_a_row: int = 3
    """Faults of an evaluator's own, over all requests, after which it is left alone."""
    tries: int = 3
    """Faults or senseless answers for one request, and evaluators lost while they ran it, after which it is given up."""
    lives: int = 4
    """Lives of evaluators, one that comes back counted each time, that ended while they ran one request, after which it is given
    up. More than an evaluator itself allows, so that one that comes back says first what it makes of the candidate."""


class EvaluatorTransport(Protocol):
    """What a pool uses of the client; `kernelevo_api.client.AsyncEvaluatorClient` has it."""

    async def get_capabilities(self) -> Capabilities: ...

    async def register_problem(
        self,
        problem: Problem,
        *,
        accept_refused: bool = False,
        with_seeds: bool = False,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> ProblemReport: ...

    async def evaluate(
        self, request: EvaluateRequest, *, on_progress: Callable[[Progress], None] | None = None
    ) -> Evaluation: ...

    def watch_health(self) -> AsyncIterator[bool]: ...

    async def close(self) -> None: ...


@dataclass(slots=True, kw_only=True, eq=False)
class Endpoint:
    """One evaluator."""

    name: str
    """What the log calls it: its address, or "embedded"."""
    transport: EvaluatorTransport
    place: Place | None = None
    """Where it was found; absent for one that was handed in."""
    capabilities: Capabilities | None = None
    """Of the last time it answered."""
    lanes: int | None = None
    """Lanes of it that are ours to fill; absent: all."""
    outstanding: int = 0
    """Requests of ours that it holds."""
    up: bool = True
    serving: bool = True
    """What its health service says; true where it has none."""
    known: bool = False
    """It has been part of the pool: from now on it is lost and returns, before it joins."""
    unfit: str = ""
    """Why it is not used although it answers; empty where it is."""
    leaving: bool = False
    rest_until: float = 0.0
    """Not asked before this time of the event loop's clock: it failed."""
    busy_until: float = 0.0
    """Not asked before this time: its queue was full."""
    rests: int = 0
    faults_in_a_row: int = 0
    trouble: str = ""
    registered: set[str] = field(default_factory=set)
    """Digests of the problems that it holds."""
    refused: set[str] = field(default_factory=set)
    """Digests of the problems that its audit refuses although another's took them."""
    looked_at: float = -1e9
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    down: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while it is to be looked at until it is back."""
    back: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while it is up, once it was looked at."""
    draw: float = field(default_factory=random.random)
    """Breaks ties, so that many clients of the same evaluators do not all begin with the first."""

    def share(self, device: DeviceRequirement | None) -> int:
        """Lanes of ours whose device is what is asked for; at least one where any is."""
        found = self._fitting(device)
        return min(found, self.lanes) if self.lanes is not None else found

    def _fitting(self, device: DeviceRequirement | None) -> int:
        capabilities = self.capabilities
        if capabilities is None:
            return 0
        lanes = max(1, capabilities.queue.lanes) if capabilities.queue is not None else 1
        if not capabilities.devices:
            return lanes if device is None else 0
        fitting = sum(one.healthy and fits(one, device) for one in capabilities.devices)
        return max(1, lanes * fitting // len(capabilities.devices)) if fitting else 0

    def slots(self, device: DeviceRequirement | None) -> int:
        """Requests it should hold at once: one on each lane, and one behind it whose build overlaps with the timing."""
        lanes = self.share(device)
        queue = self.capabilities.queue if self.capabilities is not None else None
        if queue is not None and queue.capacity_per_client > 0:
            return min(2 * lanes, lanes + queue.capacity_per_client)
        return 2 * lanes

    def answers(self, now: float) -> bool:
        """Whether it may be sent requests, now or as soon as its queue has room."""
        return self.up and not self.leaving and not self.unfit and now >= self.rest_until

    def rest(self, now: float, settings: PoolSettings, at_least: float = 0.0) -> float:
        """Leave it alone for a while, longer each time; returns for how many seconds."""
        seconds = min(settings.rest_s * 2.0**self.rests, settings.longest_rest_s)
        self.rests += 1
        # Jitter, so that clients that were turned away together do not come back together.
        seconds = max(at_least, seconds) * random.uniform(1.0, 1.25)  # noqa: S311
        self.rest_until = now + seconds
        return seconds

    def did_well(self) -> None:
        """It carried a request out: what it did wrong before is forgotten."""
        self.rests = self.faults_in_a_row = 0
        self.rest_until = 0.0
        self.trouble = ""

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Counts one request of ours."""
        self.outstanding += 1
        try:
            yield
        finally:
            self.outstanding -= 1
