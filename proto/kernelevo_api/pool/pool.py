"""Several evaluators as one: chooses where a request goes, and sends it elsewhere where that evaluator is lost.

What is retried is what is not the candidate's doing: an evaluator that is gone, drains, is full or has failed. A request keeps
its `request_id` wherever it goes, so an evaluator that held it already replays what it found. A request that was running on
several evaluators, or on one again and again, when each of them was lost is given up, before it takes the next one down.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
import uuid
from typing import TYPE_CHECKING, Self

from kernelevo_api import channel as channels
from kernelevo_api.channel import RetryPolicy, Tls
from kernelevo_api.client import AsyncEvaluatorClient, problem_digest
from kernelevo_api.errors import (
    PROBLEM_NOT_TAKEN,
    CallRefused,
    DeadlineExceeded,
    Draining,
    EvaluatorError,
    EvaluatorFault,
    LimitTooHigh,
    ProblemRefused,
    QueueFull,
    StoreUnavailable,
    TooLarge,
    Unauthenticated,
    UnknownProblem,
    Unreachable,
    Unsupported,
)
from kernelevo_api.pool.devices import describe
from kernelevo_api.pool.discovery import FILE_PREFIX, sources_of
from kernelevo_api.pool.endpoint import Endpoint, PoolSettings
from kernelevo_api.pool.errors import NoEvaluator, NotEvaluated
from kernelevo_api.pool.members import Members
from kernelevo_api.pool.notices import Change
from kernelevo_api.pool.placement import Attempt, Placement, least
from kernelevo_api.pool.watching import watch
from kernelevo_api.types import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kernelevo_api.pool.discovery import Place, Source
    from kernelevo_api.pool.endpoint import EvaluatorTransport
    from kernelevo_api.pool.notices import Notice
    from kernelevo_api.types import (
        Capabilities,
        DeviceRequirement,
        EvaluateRequest,
        Evaluation,
        Problem,
        ProblemReport,
        Progress,
    )

_WAITING_STAGES = frozenset({None, Stage.ADMIT, Stage.QUEUE})


class EvaluatorPool:
    """Several evaluators as one. `connect` first; within `async with`, or beside `watch`, it also notices what changes meanwhile.

    Args:
        endpoints: evaluators that are known.
        sources: where others are found; `connect_to` makes a connection to such a place.
        settings: its numbers.
        client_id: what requests without one of their own say.
        revive: called before each look at evaluators when none answers, e.g. to start an embedded one again.
        on_wait: told why when no evaluator answers, and the empty string when one does again.
        on_notice: told what becomes of each evaluator.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint] = (),
        *,
        sources: Sequence[Source] = (),
        connect_to: Callable[[Place], EvaluatorTransport] | None = None,
        settings: PoolSettings | None = None,
        client_id: str = "",
        revive: Callable[[], None] | None = None,
        on_wait: Callable[[str], None] | None = None,
        on_notice: Callable[[Notice], None] | None = None,
    ) -> None:
        self.settings = settings or PoolSettings()
        self.client_id = client_id
        self._members = Members(endpoints, sources, connect_to, self.settings)
        self._members.on_notice = on_notice
        self._revive = revive
        self._placement = Placement(self._members, self.settings, revive)
        self._placement.on_wait = on_wait
        self._problems: dict[str, tuple[Problem, bool]] = {}
        self._watching: asyncio.Task[None] | None = None

    @classmethod
    def of(
        cls,
        addresses: Sequence[str],
        *,
        client_id: str = "",
        token: str | None = None,
        tls: Tls | None = None,
        settings: PoolSettings | None = None,
        on_wait: Callable[[str], None] | None = None,
        on_notice: Callable[[Notice], None] | None = None,
    ) -> EvaluatorPool:
        """A pool of the evaluators at these addresses: `host:port`, `unix:PATH`, or `file:PATH` with a list of them.

        Raises:
            ValueError: one of them is no address, or a token would cross a network in plain text.
        """

        def connect_to(place: Place) -> AsyncEvaluatorClient:
            # The pool retries: elsewhere, and at once.
            return AsyncEvaluatorClient(
                place.target,
                client_id=client_id,
                token=token,
                tls=tls,
                server_name=place.server_name,
                retry=RetryPolicy(queue_s=0.0, unavailable_s=0.0),
            )

        sources = sources_of(addresses)
        for source in sources:
            if not source.name.startswith(FILE_PREFIX):
                # Now rather than when it is connected to: a token that would cross the network in plain text.
                channels.metadata(token, channels.target_of(source.name), tls)
        return cls(
            sources=sources,
            connect_to=connect_to,
            settings=settings,
            client_id=client_id,
            on_wait=on_wait,
            on_notice=on_notice,
        )

    async def __aenter__(self) -> Self:
        self._watching = asyncio.create_task(self.watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching
        await self.close()

    async def watch(self) -> None:
        """Follow the evaluators' health, look at those that are gone, and read lists again, until this is cancelled."""
        await watch(self._members, self.settings)

    async def close(self) -> None:
        """Close every connection."""
        await self._members.close()

    def alone(self, endpoint: Endpoint, lanes: int | None = None) -> EvaluatorPool:
        """A pool of one of the evaluators here, over its connection, which stays ours: do not close it.

        Args:
            lanes: how many of its lanes that pool is to fill; absent: all.
        """
        only = Endpoint(name=endpoint.name, transport=endpoint.transport, lanes=lanes)
        return EvaluatorPool([only], settings=self.settings, client_id=self.client_id, revive=self._revive)

    def revive(self) -> None:
        """Have an evaluator of our own started again, where one has ended."""
        if self._revive is not None:
            self._revive()

    # Who there is.

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The evaluators of the pool's kind of device, whether they answer at the moment or not."""
        return tuple(one for one in self._of_use if self.device is None or one.share(self.device))

    @property
    def _of_use(self) -> tuple[Endpoint, ...]:
        """Those, and the ones that have a kind that single requests may ask for."""
        return self._members.of_use

    @property
    def device(self) -> DeviceRequirement | None:
        """The one kind of device that requests run on, unless they ask for another."""
        return self._members.device

    @property
    def on_notice(self) -> Callable[[Notice], None] | None:
        """Told what becomes of each evaluator."""
        return self._members.on_notice

    @on_notice.setter
    def on_notice(self, listener: Callable[[Notice], None] | None) -> None:
        self._members.on_notice = listener

    @property
    def on_wait(self) -> Callable[[str], None] | None:
        """Told why when no evaluator answers, and the empty string when one does again."""
        return self._placement.on_wait

    @on_wait.setter
    def on_wait(self, listener: Callable[[str], None] | None) -> None:
        self._placement.on_wait = listener

    @property
    def slots(self) -> int:
        """Requests that should be in flight at once, over all evaluators that answer; at least one."""
        now = asyncio.get_running_loop().time()
        return sum(one.slots(self.device) for one in self._members.endpoints if one.answers(now)) or 1

    @property
    def outstanding(self) -> int:
        """Requests of ours that evaluators hold; those that wait for one to answer are not among them."""
        return sum(one.outstanding for one in self._members.endpoints)

    async def connect(
        self, *, device: DeviceRequirement | None = None, others: Sequence[DeviceRequirement] = ()
    ) -> Capabilities:
        """Ask every evaluator what it can do, and settle on one kind of device: speedups on different ones are not compared.

        Those that do not answer join when they do; those without a device of that kind are left out.

        Args:
            device: what the device must be; absent: the kind with the most lanes.
            others: kinds that single requests will ask for. Their evaluators get no other requests.

        Returns:
            What the first evaluator of that kind can do.

        Raises:
            NoEvaluator: none can be used, or none has one of the other kinds and all have answered.
        """
        members = self._members
        await members.refresh()
        troubles = [*members.unreadable, *await members.meet(device, others)]
        if members.device is None:
            raise NoEvaluator("no evaluator can be used: " + "; ".join(troubles))
        for other in others:
            if all(one.up for one in members.endpoints) and not any(one.share(other) for one in self._of_use):
                raise NoEvaluator(f"no evaluator has a healthy device that is {describe(other)}")
        capabilities = self.endpoints[0].capabilities
        assert capabilities is not None
        return capabilities

    # Problems.

    async def register(
        self,
        problem: Problem,
        *,
        accept_refused: bool = False,
        with_seeds: bool = False,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> ProblemReport:
        """Register the problem everywhere; the report is the first evaluator's. One that joins later gets it with its first
        request.

        Args:
            with_seeds: have that one make candidates that need no model too.

        Raises:
            ProblemRefused, InvalidRequest, TooLarge, Unsupported: no evaluator takes it; the first one's word.
            Unauthenticated: none takes anything from us.
            NoEvaluator: nobody took it, and that is not the problem's doing.
        """
        digest = problem_digest(problem.source)
        self._problems[digest] = (problem, accept_refused)
        asked = [one for one in self.endpoints if one.up] or list(self.endpoints)
        results = await asyncio.gather(
            *(self._register(one, digest, on_progress) for one in asked), return_exceptions=True
        )
        reports: list[tuple[Endpoint, ProblemReport]] = []
        refusals: list[tuple[Endpoint, EvaluatorError]] = []
        for endpoint, result in zip(asked, results, strict=True):
            if isinstance(result, PROBLEM_NOT_TAKEN):
                refusals.append((endpoint, result))
            elif isinstance(result, EvaluatorError):
                self._members.set_aside(endpoint, str(result))
            elif isinstance(result, BaseException):
                raise result
            else:
                reports.append((endpoint, result))
        if not reports and refusals:
            raise refusals[0][1]
        if not reports and isinstance(results[0], Unauthenticated) and len({type(one) for one in results}) == 1:
            raise results[0]
        if not reports:
            raise NoEvaluator("no evaluator took the problem: " + "; ".join(one.trouble for one in asked))
        for endpoint, refusal in refusals:
            self._refuses(endpoint, digest, refusal)
        first, report = reports[0]
        return await self._register(first, digest, on_progress, with_seeds=True) if with_seeds else report

    async def _register(
        self,
        endpoint: Endpoint,
        digest: str,
        on_progress: Callable[[Progress], None] | None = None,
        *,
        with_seeds: bool = False,
    ) -> ProblemReport:
        problem, accept_refused = self._problems[digest]
        while True:
            try:
                report = await endpoint.transport.register_problem(
                    problem, accept_refused=accept_refused, with_seeds=with_seeds, on_progress=on_progress
                )
            except QueueFull as full:
                await asyncio.sleep(self._full_s(full))
            else:
                endpoint.registered.add(digest)
                return report

    def _full_s(self, full: QueueFull) -> float:
        """How long to stay away from a full queue; jitter, so that clients refused together do not come back together."""
        asked = full.retry_delay.total_seconds() if full.retry_delay else self.settings.rest_s
        return asked * random.uniform(1.0, 1.25)  # noqa: S311

    def _refuses(self, endpoint: Endpoint, digest: str, refusal: EvaluatorError) -> None:
        endpoint.refused.add(digest)
        self._members.tell(Change.LEFT_OUT, endpoint.name, f"it refuses a problem that others took: {refusal}")

    # Evaluations.

    def choose(self, preferred: str = "", *, device: DeviceRequirement | None = None) -> str:
        """The name of the evaluator that the next request should go to; empty where there is none.

        Args:
            device: another kind than the pool's.
        """
        now, wanted = asyncio.get_running_loop().time(), device or self.device
        able = [one for one in self._of_use if wanted is None or one.share(wanted)]
        chosen = least([one for one in able if one.answers(now)] or able, wanted, preferred)
        return chosen.name if chosen is not None else ""

    async def evaluate(
        self,
        request: EvaluateRequest,
        *,
        preferred: str = "",
        on_progress: Callable[[Progress], None] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - covers retries on several evaluators
        patience_s: float | None = None,
    ) -> Evaluation:
        """Have it evaluated, wherever that is possible, however long one has to wait for it.

        Args:
            preferred: the evaluator that may hold it already.
            timeout: seconds for everything, waiting included.
            patience_s: seconds to wait at most while no evaluator answers; absent: as long as it takes.

        Raises:
            NotEvaluated: sending it again is of no use.
            ProblemRefused, Unauthenticated: no evaluator takes the problem, or us.
            DeadlineExceeded: `timeout` passed.
            NoEvaluator: `patience_s` passed.
        """
        request = dataclasses.replace(
            request,
            request_id=request.request_id or str(uuid.uuid4()),
            client_id=request.client_id or self.client_id,
            device=request.device or self.device,
        )
        attempt = Attempt(preferred, patience_s)
        try:
            async with asyncio.timeout(timeout):
                while True:
                    endpoint = await self._placement.available(request, attempt)
                    with endpoint.holding():
                        try:
                            return await self._send(endpoint, request, attempt, on_progress)
                        except EvaluatorError as error:
                            self._after(error, endpoint, request, attempt)
        except TimeoutError as error:
            raise DeadlineExceeded(f"no evaluator was done within {timeout:g} s") from error

    async def _send(
        self,
        endpoint: Endpoint,
        request: EvaluateRequest,
        attempt: Attempt,
        on_progress: Callable[[Progress], None] | None,
    ) -> Evaluation:
        attempt.running = False
        attempt.life = endpoint.capabilities.life_id if endpoint.capabilities is not None else ""

        def told(progress: Progress) -> None:
            attempt.running = progress.stage not in _WAITING_STAGES
            if on_progress is not None:
                on_progress(progress)

        digest = request.problem_digest or ""
        if digest in self._problems and digest not in endpoint.registered:
            await self._register(endpoint, digest)
        evaluation = await endpoint.transport.evaluate(request, on_progress=told)
        endpoint.did_well()
        return evaluation

    def _after(self, error: EvaluatorError, endpoint: Endpoint, request: EvaluateRequest, attempt: Attempt) -> None:
        """Note what went wrong. Returns where the request is to be sent again; raises where it is of no use."""
        loop = asyncio.get_running_loop()
        digest = request.problem_digest or ""
        match error:
            case QueueFull():
                endpoint.busy_until = loop.time() + self._full_s(error)
            case Draining():
                self._members.set_aside(endpoint, str(error))
                endpoint.rest(loop.time(), self.settings, self.settings.probe_s)
            case StoreUnavailable():
                self._rest(endpoint, str(error))
            case EvaluatorFault():
                endpoint.faults_in_a_row += 1
                if endpoint.faults_in_a_row >= self.settings.faults_in_a_row or not self._placement.others(
                    endpoint, request
                ):
                    self._rest(endpoint, f"it fails again and again: {error}")
                self._count(error, endpoint, attempt)
            case Unreachable():
                self._members.set_aside(endpoint, str(error))
                life = endpoint.name, attempt.life
                if attempt.running and life not in attempt.lost:
                    attempt.lost.append(life)
                    names = [name for name, _ in attempt.lost]
                    if len(set(names)) >= self.settings.tries or len(names) >= self.settings.lives:
                        raise NotEvaluated(
                            "evaluators_lost", f"evaluators were lost while they ran it: {', '.join(names)}"
                        ) from error
            case UnknownProblem() if digest in self._problems:
                endpoint.registered.discard(digest)
                self._count(error, endpoint, attempt)
            case ProblemRefused():
                if not any(digest in one.registered for one in self._of_use if one is not endpoint):
                    raise error
                self._refuses(endpoint, digest, error)
            case Unauthenticated():
                self._members.set_aside(endpoint, str(error))
                if not self._placement.others(endpoint, request):
                    raise error
            case LimitTooHigh() | TooLarge() | Unsupported():
                # Another evaluator may be set up otherwise.
                attempt.refused[endpoint] = error
                if all(one in attempt.refused for one in self._placement.able(request)):
                    raise NotEvaluated(error.reason.value, str(error)) from error
            case CallRefused():
                raise NotEvaluated(error.reason.value, str(error)) from error
            case _:
                self._rest(endpoint, str(error))
                self._count(error, endpoint, attempt)

    def _rest(self, endpoint: Endpoint, reason: str) -> None:
        seconds = endpoint.rest(asyncio.get_running_loop().time(), self.settings)
        endpoint.trouble = reason
        self._members.tell(Change.LOST, endpoint.name, f"{reason}; asked again in {seconds:.1f} s")

    def _count(self, error: EvaluatorError, endpoint: Endpoint, attempt: Attempt) -> None:
        attempt.avoid.add(endpoint)
        attempt.faults += 1
        if attempt.faults >= self.settings.tries:
            reason = error.reason.value if isinstance(error, CallRefused) else type(error).__name__
            raise NotEvaluated(reason, str(error)) from error
