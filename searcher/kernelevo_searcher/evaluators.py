"""The evaluators of a run: several endpoints as one, with a capacity, a pinned kind of device, and a way to wait for them.

Work goes to the endpoint with the fewest requests outstanding for its capacity. An endpoint that stops answering is set aside
and looked at again until it is back; what was sent to it is sent to another under the same request id. While none answers
nothing fails: the caller learns that it waits. This module writes no events.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from kernelevo_api.errors import (
    CallCancelled,
    CallRefused,
    ContractViolation,
    DeadlineExceeded,
    EvaluatorError,
    ProblemRefused,
    Unauthenticated,
    UnknownProblem,
)
from kernelevo_api.types import DeviceRequirement

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kernelevo_api.types import (
        Capabilities,
        Device,
        EvaluateRequest,
        Evaluation,
        Problem,
        ProblemReport,
        Progress,
    )

__all__ = ["Endpoint", "EvaluatorPool", "EvaluatorTransport", "NoEvaluator", "NotEvaluated"]

_MOST_TRIES = 3
"""Answers that make no sense, for one request, after which it is given up."""


class EvaluatorTransport(Protocol):
    """What is used of the client; `kernelevo_api.client.AsyncEvaluatorClient` has it."""

    async def get_capabilities(self) -> Capabilities: ...

    async def register_problem(
        self,
        problem: Problem,
        *,
        accept_refused: bool = False,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> ProblemReport: ...

    async def evaluate(
        self, request: EvaluateRequest, *, on_progress: Callable[[Progress], None] | None = None
    ) -> Evaluation: ...

    async def close(self) -> None: ...


class NoEvaluator(Exception):
    """None of the evaluators can be used; the message says what to do."""


class NotEvaluated(Exception):
    """This request will not be carried out by anybody, however often it is sent."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(slots=True, kw_only=True)
class Endpoint:
    """One evaluator."""

    name: str
    """What the log calls it: its address, or "embedded"."""
    transport: EvaluatorTransport
    capabilities: Capabilities | None = None
    outstanding: int = 0
    up: bool = True
    registered: bool = False
    trouble: str = ""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def slots(self) -> int:
        """Requests it should hold at once: one on each lane, and one behind it whose build overlaps with the timing."""
        queue = self.capabilities.queue if self.capabilities is not None else None
        lanes = max(1, queue.lanes) if queue is not None else 1
        slots = 2 * lanes
        if queue is not None and queue.capacity_per_client > 0:
            slots = min(slots, lanes + queue.capacity_per_client)
        return slots


class EvaluatorPool:
    """Several endpoints as one.

    Args:
        endpoints: at least one.
        probe_s: time between two looks at an endpoint that is gone.
        revive: called before each such look, e.g. to start an embedded evaluator again.
        on_wait: told why when nothing answers, and the empty string when something does again.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        *,
        probe_s: float = 2.0,
        revive: Callable[[], None] | None = None,
        on_wait: Callable[[str], None] | None = None,
    ) -> None:
        self.endpoints = list(endpoints)
        self.device: DeviceRequirement | None = None
        self.left_out: list[str] = []
        """Why an endpoint that was named is not used, for people."""
        self.on_wait = on_wait
        self._probe_s = probe_s
        self._revive = revive
        self._problem: Problem | None = None
        self._accept_refused = False
        self._waiting = 0

    async def connect(self, *, device: DeviceRequirement | None = None) -> Capabilities:
        """Ask every endpoint what it can do, and pin the device. Endpoints that do not fit are left out.

        Args:
            device: what an earlier part of the run was pinned to; absent: the first device found.

        Raises:
            NoEvaluator: none is left.
        """
        answers = await asyncio.gather(*(self._ask(endpoint) for endpoint in self.endpoints))
        usable = []
        for endpoint, trouble in zip(self.endpoints, answers, strict=True):
            if trouble:
                self.left_out.append(trouble)
                continue
            assert endpoint.capabilities is not None
            healthy = [found for found in endpoint.capabilities.devices if found.healthy]
            matching = [found for found in healthy if device is None or _fits(found, device)]
            if not matching:
                wanted = f" that is {_words(device)}" if device is not None else ""
                self.left_out.append(f"{endpoint.name} has no healthy device{wanted}")
                continue
            device = device or DeviceRequirement(
                kind=matching[0].kind, name=matching[0].name, architecture=matching[0].architecture
            )
            usable.append(endpoint)
        if not usable:
            raise NoEvaluator("no evaluator can be used: " + "; ".join(self.left_out))
        for endpoint in self.endpoints:
            if endpoint not in usable:
                await endpoint.transport.close()
        self.endpoints, self.device = usable, device
        assert usable[0].capabilities is not None
        return usable[0].capabilities

    @staticmethod
    async def _ask(endpoint: Endpoint) -> str:
        try:
            endpoint.capabilities = await endpoint.transport.get_capabilities()
        except EvaluatorError as error:
            return str(error)
        return ""

    @property
    def slots(self) -> int:
        """Requests that should be in flight at once, over all endpoints that answer."""
        return sum(endpoint.slots for endpoint in self.endpoints if endpoint.up) or 1

    async def register(
        self,
        problem: Problem,
        *,
        accept_refused: bool = False,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> ProblemReport:
        """Register the problem everywhere; the report is the first endpoint's.

        Raises:
            ProblemRefused: it cannot be used.
            NoEvaluator: nobody took it.
        """
        self._problem, self._accept_refused = problem, accept_refused
        results = await asyncio.gather(
            *(self._register(endpoint, on_progress) for endpoint in self.endpoints), return_exceptions=True
        )
        reports = []
        for endpoint, result in zip(self.endpoints, results, strict=True):
            if isinstance(result, EvaluatorError) and not isinstance(result, (ProblemRefused, Unauthenticated)):
                endpoint.up, endpoint.trouble = False, str(result)
            elif isinstance(result, BaseException):
                raise result
            else:
                reports.append(result)
        if not reports:
            raise NoEvaluator("no evaluator took the problem: " + "; ".join(e.trouble for e in self.endpoints))
        return reports[0]

    async def _register(
        self, endpoint: Endpoint, on_progress: Callable[[Progress], None] | None = None
    ) -> ProblemReport:
        assert self._problem is not None
        report = await endpoint.transport.register_problem(
            self._problem, accept_refused=self._accept_refused, on_progress=on_progress
        )
        endpoint.registered = True
        return report

    def choose(self, preferred: str = "") -> str:
        """The name of the endpoint that the next request should go to."""
        up = [endpoint for endpoint in self.endpoints if endpoint.up] or self.endpoints
        for endpoint in up:
            if endpoint.name == preferred:
                return endpoint.name
        return min(up, key=lambda endpoint: endpoint.outstanding / endpoint.slots).name

    async def evaluate(
        self,
        request: EvaluateRequest,
        *,
        preferred: str = "",
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Evaluation:
        """Have it evaluated, wherever that is possible, however long one has to wait for it.

        Raises:
            NotEvaluated: sending it again is of no use.
            ProblemRefused, Unauthenticated: the run cannot go on.
        """
        tries = 0
        while True:
            endpoint = await self._available(preferred)
            endpoint.outstanding += 1
            try:
                if not endpoint.registered:
                    await self._register(endpoint)
                return await endpoint.transport.evaluate(request, on_progress=on_progress)
            except UnknownProblem as error:
                endpoint.registered = False
                tries += 1
                if tries >= _MOST_TRIES:
                    raise NotEvaluated(error.reason.value, str(error)) from error
            except (ProblemRefused, Unauthenticated):
                raise
            except EvaluatorError as error:
                if isinstance(error, CallRefused) and not error.retryable:
                    raise NotEvaluated(error.reason.value, str(error)) from error
                if isinstance(error, (ContractViolation, CallCancelled, DeadlineExceeded)):
                    tries += 1
                    if tries >= _MOST_TRIES:
                        raise NotEvaluated(type(error).__name__, str(error)) from error
                endpoint.up, endpoint.trouble = False, str(error)
            finally:
                endpoint.outstanding -= 1

    async def _available(self, preferred: str) -> Endpoint:
        """An endpoint that answers, as soon as there is one."""
        waited = False
        try:
            while True:
                if any(endpoint.up for endpoint in self.endpoints):
                    name = self.choose(preferred)
                    return next(endpoint for endpoint in self.endpoints if endpoint.name == name)
                if not waited:
                    waited = True
                    self._waits(1)
                if self._revive is not None:
                    self._revive()
                await asyncio.gather(*(self._look(endpoint) for endpoint in self.endpoints))
                if not any(endpoint.up for endpoint in self.endpoints):
                    await asyncio.sleep(self._probe_s)
        finally:
            if waited:
                self._waits(-1)

    def _waits(self, change: int) -> None:
        before, self._waiting = self._waiting, self._waiting + change
        if self.on_wait is not None and (before == 0) != (self._waiting == 0):
            troubles = "; ".join(endpoint.trouble for endpoint in self.endpoints if endpoint.trouble)
            self.on_wait(f"no evaluator answers: {troubles}" if self._waiting else "")

    @staticmethod
    async def _look(endpoint: Endpoint) -> None:
        async with endpoint.lock:
            if endpoint.up:
                return
            try:
                endpoint.capabilities = await endpoint.transport.get_capabilities()
            except EvaluatorError as error:
                endpoint.trouble = str(error)
            else:
                endpoint.up, endpoint.trouble, endpoint.registered = True, "", False

    async def look_again(self) -> None:
        """Look at endpoints that are gone, for as long as this is not cancelled."""
        while True:
            await asyncio.sleep(5 * self._probe_s)
            if any(endpoint.up for endpoint in self.endpoints):
                await asyncio.gather(*(self._look(endpoint) for endpoint in self.endpoints))

    async def close(self) -> None:
        """Close every connection."""
        for endpoint in self.endpoints:
            await endpoint.transport.close()


def _fits(device: Device, wanted: DeviceRequirement) -> bool:
    return (
        (wanted.kind is None or device.kind is wanted.kind)
        and (not wanted.name or device.name == wanted.name)
        and (not wanted.architecture or device.architecture == wanted.architecture)
    )


def _words(device: DeviceRequirement) -> str:
    return " ".join(word for word in (device.name, device.architecture) if word) or "of the run's kind"
