"""What the service does, in plain values: problems, requests and evaluations, between store, scheduler and executor.

A request lives from the moment it is accepted to the moment its evaluation is stored, whoever is connected meanwhile. Streams
attach to it and go; when the last one has gone, the request has `grace_s` to see one of them come back, and is then given up.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
import uuid
import weakref
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from kernelevo_api.errors import (
    CallRefused,
    Draining,
    EvaluatorFault,
    FieldViolation,
    InvalidRequest,
    ProblemRefused,
    RequestIdReused,
    StoreUnavailable,
    UnknownEvaluation,
    UnknownProblem,
)
from kernelevo_api.types import (
    BaselineKind,
    Capabilities,
    Effort,
    EvaluateRequest,
    Evaluation,
    Problem,
    ProblemReport,
    Progress,
    QueueState,
    RegisterProblemRequest,
    Stage,
    Verdict,
)
from kernelevo_evaluator import executor as executors
from kernelevo_evaluator.admission import Admission, Admitted, content_key
from kernelevo_evaluator.problem import read_problem
from kernelevo_evaluator.scheduler import Listener, Scheduler, Ticket
from kernelevo_evaluator.sources import digest_of
from kernelevo_evaluator.store import ABANDONED, DONE, NEVER_CACHED, AcceptedRequest

if TYPE_CHECKING:
    from kernelevo_evaluator.executor import Executor, ExecutorFacts, ProblemSource, ProgressCallback
    from kernelevo_evaluator.settings import EvaluatorSettings
    from kernelevo_evaluator.store import Store

T = TypeVar("T")

API_VERSION = "v1"
DEFAULT_PAGE, MAXIMUM_PAGE = 100, 1000
RECENT_KEPT = 64
"""Evaluations kept in memory for equal requests that come while the first is on its way into the store."""

ProgressListener = Callable[[Progress], None]

_log = structlog.get_logger("kernelevo.evaluator")


@dataclass(eq=False, slots=True, kw_only=True)
class _Open:
    """A request that is accepted and whose evaluation is not stored yet."""

    accepted: AcceptedRequest
    result: asyncio.Future[Evaluation]
    listeners: list[ProgressListener] = field(default_factory=list)
    streams: int = 0
    latest: Progress | None = None
    ticket: Ticket[Any] | None = None
    """For the work at hand: the problem's audit, then the evaluation."""
    submitted: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once it waits for work, or has ended without."""
    expiry: asyncio.TimerHandle | None = None
    unsaved: tuple[Evaluation, str | None] | None = None
    """An evaluation that the store did not take, with its cache key."""
    stopping: bool = False

    def tell(self, stage: Stage, message: str, position: int | None) -> None:
        """Pass a stage on to whoever is attached."""
        self.latest = _progress(self, stage, message, position)
        for listener in tuple(self.listeners):
            listener(self.latest)


class Evaluations:
    """Everything behind the API. Belongs to one event loop."""

    def __init__(
        self,
        *,
        executor: Executor,
        facts: ExecutorFacts,
        store: Store,
        settings: EvaluatorSettings,
        evaluator_version: str,
    ) -> None:
        self._executor = executor
        self._facts = facts
        self._store = store
        self._settings = settings
        self._version = evaluator_version
        self._admission = Admission(facts, evaluator_version, settings.maximum_source_bytes)
        self._environment = self._admission.environment_key()
        self._scheduler = Scheduler(executor.concurrency, settings.queue_capacity, settings.queue_capacity_per_client)
        self._by_request: dict[str, _Open] = {}
        self._by_evaluation: dict[str, _Open] = {}
        # One call at a time for each request_id between "have we seen it" and "it is accepted".
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._tasks: set[asyncio.Task[None]] = set()
        # Requests of each client that wait for their problem's audit.
        self._auditing: Counter[str] = Counter()
        # A request may have missed an equal one in the store because that had not ended, and among what runs because it had.
        self._recent: OrderedDict[str, Evaluation] = OrderedDict()

    # --- Life

    async def recover(self) -> int:
        """Carry out what an earlier life accepted and did not finish; returns how much that is."""
        interrupted = await self._store.interrupted()
        for accepted in interrupted:
            self._spawn(self._recover(accepted))
        return len(interrupted)

    async def drain(self, seconds: float) -> None:
        """Refuse what is new, let what runs finish within `seconds`, then stop it. What is left goes on at the next start."""
        await self._scheduler.drain(seconds)
        for request in list(self._by_request.values()):
            if request.expiry is not None:
                request.expiry.cancel()
        # What ends these is the end of their work, which has come.
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def hurry(self) -> None:
        """Let `drain` wait no longer."""
        self._scheduler.hurry()

    @property
    def draining(self) -> bool:
        return self._scheduler.draining

    # --- Lookups

    def capabilities(self) -> Capabilities:
        """What this evaluator can do, and how busy it is."""
        facts = self._facts
        return Capabilities(
            api_version=API_VERSION,
            protocol_version=facts.protocol_version,
            evaluator_version=self._version,
            instance_id=self._store.instance_id,
            devices=facts.devices,
            languages=facts.languages,
            toolchain=facts.toolchain,
            sandbox=facts.sandbox,
            default_limits=facts.default_limits,
            maximum_limits=facts.maximum_limits,
            maximum_source_bytes=self._settings.maximum_source_bytes,
            queue=QueueState(
                lanes=self._executor.lanes,
                running=self._scheduler.running,
                queued=self._scheduler.queued,
                capacity=self._settings.queue_capacity,
                capacity_per_client=self._settings.queue_capacity_per_client,
            ),
            efforts=facts.efforts,
        )

    async def get(self, *, request_id: str | None, evaluation_id: str | None) -> Evaluation | Progress:
        """What is recorded, or where it is.

        Raises:
            UnknownEvaluation: nothing is known under this id.
        """
        request = self._find_open(request_id, evaluation_id)
        if request is not None and request.unsaved is None:
            return request.latest or _progress(request, Stage.ADMIT, "accepted", None)
        if evaluation_id is None:
            accepted = await self._store.request(request_id=request_id or "")
            evaluation_id = accepted.evaluation_id if accepted is not None else ""
            if accepted is not None and accepted.state not in (DONE, ABANDONED):
                return Progress(evaluation_id=evaluation_id, stage=Stage.QUEUE, message="accepted, not begun")
        evaluation = await self._store.evaluation(evaluation_id)
        if evaluation is not None:
            return evaluation
        if evaluation_id and await self._store.request(evaluation_id=evaluation_id) is not None:
            return Progress(evaluation_id=evaluation_id, stage=Stage.QUEUE, message="accepted, not begun")
        raise UnknownEvaluation(f"no evaluation {request_id or evaluation_id or ''} is stored here")

    async def page(self, problem_digest: str, size: int, token: str) -> tuple[list[Evaluation], str]:
        """One page of recorded evaluations, newest first, and the token of the next."""
        if not 0 <= size <= MAXIMUM_PAGE:
            raise _invalid("page_size", f"must be between 0 and {MAXIMUM_PAGE}")
        before = _read_token(token, problem_digest) if token else None
        found, following = await self._store.page(problem_digest, before, size or DEFAULT_PAGE)
        return found, _write_token(following, problem_digest) if following is not None else ""

    # --- Problems

    async def register(self, request: RegisterProblemRequest, listener: ProgressListener) -> ProblemReport:
        """The problem's report, from the store or from its audit.

        Raises:
            ProblemRefused, TooLarge, QueueFull, Draining, EvaluatorFault, StoreUnavailable
        """
        if request.problem is None:
            raise _invalid("problem", "is missing")
        source = read_problem(request.problem, self._settings.maximum_source_bytes)
        report = await self._stored_report(source.digest, request.accept_refused)
        if report is not None:
            return report

        def told(stage: Stage, message: str, position: int | None) -> None:
            listener(Progress(stage=stage, message=message, time=datetime.now(UTC), queue_position=position))

        ticket = self._audit(source, request.accept_refused, request.client_id, told)
        try:
            return await ticket.wait()
        except asyncio.CancelledError:
            # The client is gone, or the work was stopped; after a grace period nobody waits for it through this ticket.
            ticket.listener = None
            asyncio.get_running_loop().call_later(self._settings.grace_s, ticket.give_back)
            raise

    async def _stored_report(self, digest: str, accept_refused: bool) -> ProblemReport | None:
        report = await self._store.report(digest, self._environment)
        if report is not None and report.accepted_with_mark and not accept_refused:
            raise _refusal("the audit refuses this problem; it was accepted with a mark before", report)
        return report

    def _audit(
        self, source: ProblemSource, accept_refused: bool, client: str, told: Listener, *, promised: bool = False
    ) -> Ticket[ProblemReport]:
        """Join or queue the audit of a problem; its end is a stored report."""

        async def action(progress: ProgressCallback) -> ProblemReport:
            try:
                report = await _once_more(
                    lambda: self._executor.audit(source, self._facts.default_limits, accept_refused, progress),
                    progress,
                    source.digest,
                )
            except executors.ProblemRefused as refused:
                raise _refusal(str(refused), refused.report) from refused
            report = replace(report, problem_digest=source.digest, name=source.name, policy=source.policy)
            await self._store.save_problem(
                source.digest, Problem(source=source.source, name=source.name), self._environment, report
            )
            return report

        key = f"problem {source.digest} {accept_refused}"
        return self._scheduler.submit(key, client, action, told, promised=promised)

    async def _problem_of(self, request: EvaluateRequest) -> ProblemSource:
        maximum = self._settings.maximum_source_bytes
        if request.problem is not None:
            return read_problem(request.problem, maximum)
        stored = await self._store.problem(request.problem_digest or "")
        if stored is None:
            raise UnknownProblem(
                f"the problem {request.problem_digest} is not stored here; register it and send the request again"
            )
        return read_problem(stored, maximum)

    # --- Evaluations

    async def evaluate(self, request: EvaluateRequest, listener: ProgressListener) -> Evaluation:
        """Join, replay or carry out a request. Being cancelled here detaches one stream, and the grace period begins.

        Raises:
            CallRefused: it is not evaluated; the subclass says why.
        """
        self._admission.check(request)
        content = content_key(request)
        async with self._lock(request.request_id):
            found = await self._known(request, content)
            if isinstance(found, Evaluation):
                return found
            opened = found if isinstance(found, _Open) else await self._accept(request, content, found)
            # Without an await in between: the request is never seen without the stream that asked for it.
            result = self._attach(opened, listener)
        try:
            return await result
        finally:
            self._detach(opened, listener)

    async def cancel(
        self, *, request_id: str | None, evaluation_id: str | None, client_id: str
    ) -> tuple[bool, Evaluation]:
        """Detach a request from its work; returns when the work's processes are gone, if it was the last.

        Raises:
            UnknownEvaluation: nothing is known under this id, or it is another client's.
        """
        request = self._find_open(request_id, evaluation_id)
        if request is None or request.unsaved is not None:
            found = await self.get(request_id=request_id, evaluation_id=evaluation_id)
            if isinstance(found, Progress):
                raise UnknownEvaluation("this request was not begun")
            return False, found
        if client_id and client_id != request.accepted.client_id:
            raise UnknownEvaluation("this evaluation was asked for by another client")
        stopped = await self._stop(request, "cancelled on request", DONE)
        return stopped, await asyncio.shield(request.result)

    async def _known(self, request: EvaluateRequest, content: str) -> _Open | Evaluation | AcceptedRequest | None:
        opened = self._by_request.get(request.request_id)
        if opened is not None and opened.stopping:
            await asyncio.wait([opened.result])
            opened = None
        if opened is not None:
            _same_content(opened.accepted, content)
            if opened.unsaved is None:
                return opened
            return await self._save_again(opened)
        stored = await self._store.request(request_id=request.request_id)
        if stored is None:
            return None
        _same_content(stored, content)
        if stored.state == DONE:
            return await self._store.evaluation(stored.evaluation_id)
        return stored

    async def _accept(
        self,
        request: EvaluateRequest,
        content: str,
        before: AcceptedRequest | None,
        *,
        promised: bool = False,
    ) -> _Open:
        if self._scheduler.draining:
            raise Draining("this evaluator is shutting down; try another, or later")
        source = await self._problem_of(request)
        report = await self._stored_report(source.digest, request.accept_refused_problem)
        evaluation_id = before.evaluation_id if before is not None else str(uuid.uuid4())
        admitted = self._admission.resolve(request, source, report or ProblemReport(), evaluation_id)
        cached = None
        if isinstance(admitted, Admitted) and not request.fresh:
            cached = await self._store.cached(admitted.cache_key)
        if cached is None and isinstance(admitted, Admitted) and not promised:
            key = _work_key(admitted, request)
            if not self._scheduler.joins(key):
                # Those that wait for their problem's audit will want a place too.
                self._scheduler.check(request.client_id, self._auditing.total(), self._auditing[request.client_id])
        opened = _Open(
            accepted=AcceptedRequest(
                request_id=request.request_id,
                evaluation_id=evaluation_id,
                client_id=request.client_id,
                content=content,
                state="accepted",
                # By digest where the problem is stored: its source is not kept once more.
                request=replace(request, problem=None, problem_digest=source.digest) if report is not None else request,
            ),
            result=asyncio.get_running_loop().create_future(),
        )
        opened.result.add_done_callback(_retrieve)
        await self._store.accept(opened.accepted)
        self._by_request[request.request_id] = opened
        self._by_evaluation[evaluation_id] = opened
        self._spawn(self._carry(opened, request, admitted, report, cached))
        return opened

    async def _carry(
        self,
        opened: _Open,
        request: EvaluateRequest,
        admitted: Admitted | Evaluation,
        report: ProblemReport | None,
        cached: Evaluation | None,
    ) -> None:
        """Bring one accepted request to its evaluation, and into the store."""
        log = _log.bind(evaluation_id=opened.accepted.evaluation_id, client_id=opened.accepted.client_id)
        key: str | None = None
        try:
            if cached is not None:
                found = replace(cached, from_cache=True)
            elif isinstance(admitted, Evaluation):
                found = admitted
            else:
                recent = self._recent.get(admitted.cache_key) if not request.fresh else None
                if recent is not None:
                    found = recent
                else:
                    key = admitted.cache_key
                    if report is None:
                        report = await self._report_for(opened, request, admitted.job.problem)
                        if opened.stopping:
                            return
                    admitted = replace(admitted, job=replace(admitted.job, report=report))
                    found = await self._work(opened, request, admitted)
                    found = replace(found, findings=admitted.findings + found.findings)
        except asyncio.CancelledError:
            opened.submitted.set()
            if not opened.stopping:
                raise
            return
        except CallRefused as error:
            opened.submitted.set()
            log.warning("not evaluated", reason=error.reason.value, message=error.message)
            await self._fail(opened, error)
            return
        except Exception as error:
            opened.submitted.set()
            log.exception("not evaluated")
            await self._fail(opened, EvaluatorFault(f"the evaluator failed: {type(error).__name__}: {error}"))
            return
        opened.submitted.set()
        if opened.stopping:
            return
        found = replace(
            found,
            evaluation_id=opened.accepted.evaluation_id,
            request_id=opened.accepted.request_id,
            created_at=datetime.now(UTC),
            problem_accepted_with_mark=report is not None and report.accepted_with_mark,
        )
        log.info("evaluated", verdict=found.verdict.value, from_cache=found.from_cache)
        await self._finish(opened, found, key)

    async def _work(self, opened: _Open, request: EvaluateRequest, admitted: Admitted) -> Evaluation:
        job = admitted.job

        async def action(progress: ProgressCallback) -> Evaluation:
            async def attempt() -> Evaluation:
                evaluation = await self._executor.evaluate(job, progress)
                if evaluation.verdict is Verdict.EVALUATOR_FAULT:
                    raise executors.ExecutorFault(evaluation.message)
                return evaluation

            evaluation = await _once_more(attempt, progress, job.evaluation_id)
            if evaluation.verdict not in NEVER_CACHED:
                self._recent[admitted.cache_key] = replace(
                    evaluation, findings=admitted.findings + evaluation.findings, from_cache=True
                )
                if len(self._recent) > RECENT_KEPT:
                    self._recent.popitem(last=False)
            return evaluation

        ticket = self._scheduler.submit(
            _work_key(admitted, request), request.client_id, action, opened.tell, promised=True
        )
        opened.ticket = ticket
        opened.submitted.set()
        return await ticket.wait()

    async def _report_for(self, opened: _Open, request: EvaluateRequest, source: ProblemSource) -> ProblemReport:
        client = request.client_id
        self._auditing[client] += 1
        try:
            ticket = self._audit(source, request.accept_refused_problem, client, opened.tell, promised=True)
            opened.ticket = ticket
            opened.submitted.set()
            return await ticket.wait()
        finally:
            self._auditing[client] -= 1
            if not self._auditing[client]:
                del self._auditing[client]

    async def _finish(self, opened: _Open, evaluation: Evaluation, cache_key: str | None, *, state: str = DONE) -> None:
        try:
            await self._store.finish(opened.accepted.request_id, evaluation, cache_key, state=state)
        except StoreUnavailable as error:
            # Kept until the store takes it: the same request_id asks again.
            opened.unsaved = (evaluation, cache_key)
            opened.result.set_exception(error)
            return
        self._close(opened)
        opened.result.set_result(evaluation)

    async def _save_again(self, opened: _Open) -> Evaluation:
        assert opened.unsaved is not None
        evaluation, cache_key = opened.unsaved
        await self._store.finish(opened.accepted.request_id, evaluation, cache_key)
        self._close(opened)
        return evaluation

    async def _fail(self, opened: _Open, error: CallRefused) -> None:
        if not isinstance(error, Draining):
            # May be sent again under the same id. Where even that cannot be written, the next start carries it out.
            with contextlib.suppress(StoreUnavailable):
                await self._store.abandon(opened.accepted.request_id)
        self._close(opened)
        if not opened.result.done():
            opened.result.set_exception(error)

    async def _stop(self, opened: _Open, why: str, state: str) -> bool:
        """End a request without a verdict on its candidate; whether its work was stopped."""
        if opened.stopping:
            await asyncio.wait([opened.result])
            return False
        await opened.submitted.wait()
        if opened.result.done() or opened.stopping:
            await asyncio.wait([opened.result])
            return False
        opened.stopping = True
        stopped = False
        if opened.ticket is not None:
            stopped = opened.ticket.give_back()
            if stopped:
                await opened.ticket.ended()
        request = opened.accepted.request
        _log.info("stopped", evaluation_id=opened.accepted.evaluation_id, why=why, work_stopped=stopped)
        evaluation = Evaluation(
            evaluation_id=opened.accepted.evaluation_id,
            request_id=opened.accepted.request_id,
            problem_digest=request.problem_digest or "",
            candidate_digest=digest_of(request.candidate.source) if request.candidate is not None else "",
            verdict=Verdict.CANCELLED,
            stage=opened.latest.stage if opened.latest is not None else Stage.ADMIT,
            message=why,
            effort=request.effort or Effort.FULL,
            baseline=request.baseline or BaselineKind.EAGER,
            created_at=datetime.now(UTC),
        )
        await self._finish(opened, evaluation, None, state=state)
        return stopped

    def _attach(self, opened: _Open, listener: ProgressListener) -> asyncio.Future[Evaluation]:
        opened.streams += 1
        opened.listeners.append(listener)
        if opened.expiry is not None:
            opened.expiry.cancel()
            opened.expiry = None
        listener(opened.latest or _progress(opened, Stage.ADMIT, "accepted", None))
        return asyncio.shield(opened.result)

    def _detach(self, opened: _Open, listener: ProgressListener) -> None:
        opened.streams -= 1
        opened.listeners.remove(listener)
        if opened.streams == 0 and not opened.result.done():
            loop = asyncio.get_running_loop()
            opened.expiry = loop.call_later(self._settings.grace_s, self._expire, opened)

    def _expire(self, opened: _Open) -> None:
        if opened.streams == 0 and not opened.result.done():
            self._spawn(self._give_up(opened))

    async def _give_up(self, opened: _Open) -> None:
        await self._stop(opened, "the client went away and did not come back in time", ABANDONED)

    async def _recover(self, accepted: AcceptedRequest) -> None:
        request = accepted.request
        log = _log.bind(evaluation_id=accepted.evaluation_id, request_id=accepted.request_id)
        async with self._lock(accepted.request_id):
            if accepted.request_id in self._by_request:
                return
            try:
                self._admission.check(request)
                await self._accept(request, accepted.content, accepted, promised=True)
            except (Draining, StoreUnavailable):
                return
            except CallRefused as error:
                log.warning("an interrupted request cannot go on", reason=error.reason.value, message=error.message)
                with contextlib.suppress(StoreUnavailable):
                    await self._store.abandon(accepted.request_id)
                return
        log.info("an interrupted request goes on")

    def _find_open(self, request_id: str | None, evaluation_id: str | None) -> _Open | None:
        if request_id is not None:
            return self._by_request.get(request_id)
        return self._by_evaluation.get(evaluation_id or "")

    def _close(self, opened: _Open) -> None:
        self._by_request.pop(opened.accepted.request_id, None)
        self._by_evaluation.pop(opened.accepted.evaluation_id, None)
        if opened.expiry is not None:
            opened.expiry.cancel()

    def _lock(self, request_id: str) -> asyncio.Lock:
        lock = self._locks.get(request_id)
        if lock is None:
            lock = self._locks[request_id] = asyncio.Lock()
        return lock

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _once_more(attempt: Callable[[], Awaitable[T]], progress: ProgressCallback, what: str) -> T:
    """Carry `attempt` out, and once more after a fault of the executor's own."""
    try:
        return await attempt()
    except executors.ExecutorFault as fault:
        _log.warning("fault", what=what, message=str(fault))
        progress(Stage.QUEUE, "a fault of the evaluator's own; trying once more")
    try:
        return await attempt()
    except executors.ExecutorFault as fault:
        raise EvaluatorFault(f"the evaluator failed twice: {fault}") from fault


def _work_key(admitted: Admitted, request: EvaluateRequest) -> str:
    # A fresh measurement begins after it was asked for: it never joins one that is under way.
    return f"{admitted.cache_key} {admitted.job.evaluation_id}" if request.fresh else admitted.cache_key


def _progress(opened: _Open, stage: Stage, message: str, position: int | None) -> Progress:
    return Progress(
        evaluation_id=opened.accepted.evaluation_id,
        stage=stage,
        message=message,
        time=datetime.now(UTC),
        queue_position=position,
    )


def _same_content(accepted: AcceptedRequest, content: str) -> None:
    if accepted.content != content:
        raise RequestIdReused(
            f"request_id {accepted.request_id} was used before with other content; a new request needs a new id",
            violations=[FieldViolation("request_id", "was used before with other content")],
        )


def _refusal(message: str, report: ProblemReport | None) -> ProblemRefused:
    findings = [one for one in report.findings if one.refuses] if report is not None else []
    return ProblemRefused(
        message, violations=[FieldViolation("problem.source", f"{one.code}: {one.message}") for one in findings]
    )


def _invalid(name: str, description: str) -> InvalidRequest:
    return InvalidRequest(f"{name} {description}", violations=[FieldViolation(name, description)])


def _write_token(before: int, problem_digest: str) -> str:
    return base64.urlsafe_b64encode(json.dumps([before, problem_digest]).encode()).decode()


def _read_token(token: str, problem_digest: str) -> int:
    try:
        before, digest = json.loads(base64.urlsafe_b64decode(token.encode()))
    except (ValueError, TypeError, binascii.Error, RecursionError):
        raise _invalid("page_token", "is not one that this evaluator gave") from None
    if not isinstance(before, int) or digest != problem_digest:
        raise _invalid("page_token", "belongs to another list")
    return before


def _retrieve(future: asyncio.Future[Evaluation]) -> None:
    # A request may end with nobody attached.
    if not future.cancelled():
        future.exception()
