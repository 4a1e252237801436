"""From an accepted request to its stored evaluation: the cache, the audit, the work, the store. Each request once.

Knows nothing of streams and clients; what goes wrong ends in the request's future.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog

from kernelevo_api.errors import CallRefused, Draining, EvaluatorFault, StoreUnavailable
from kernelevo_api.types import Evaluation, Verdict
from kernelevo_evaluator.executor import ExecutorFault
from kernelevo_evaluator.faults import once_more
from kernelevo_evaluator.newest import Newest
from kernelevo_evaluator.sources import digest_of
from kernelevo_evaluator.store import DONE, NEVER_CACHED

if TYPE_CHECKING:
    from kernelevo_api.types import EvaluateRequest, ProblemReport
    from kernelevo_evaluator.admission import Admitted
    from kernelevo_evaluator.audits import Audits
    from kernelevo_evaluator.executor import Executor, Job, ProgressCallback
    from kernelevo_evaluator.lives import Lives
    from kernelevo_evaluator.metrics import Metrics
    from kernelevo_evaluator.requests import OpenRequest, OpenRequests
    from kernelevo_evaluator.scheduler import Scheduler
    from kernelevo_evaluator.store import AcceptedRequest, Store
    from kernelevo_evaluator.telemetry import Telemetry

RECENT_KEPT = 64
"""Evaluations kept in memory: for equal requests that come while the first is on its way into the store, and for the many that
ask for the same few."""

_log = structlog.get_logger("kernelevo.evaluator")


class Fulfilment:
    """Carries accepted requests out. Belongs to one event loop."""

    def __init__(
        self,
        *,
        executor: Executor,
        scheduler: Scheduler,
        store: Store,
        audits: Audits,
        requests: OpenRequests,
        lives: Lives,
        metrics: Metrics,
        telemetry: Telemetry,
    ) -> None:
        self._executor = executor
        self._scheduler = scheduler
        self._store = store
        self._audits = audits
        self._requests = requests
        self._lives = lives
        self._metrics = metrics
        self._telemetry = telemetry
        # A request may have missed an equal one in the store because that had not ended, and among what runs because it had.
        self._recent: Newest[str, Evaluation] = Newest(RECENT_KEPT)

    async def carry(
        self,
        opened: OpenRequest,
        request: EvaluateRequest,
        admitted: Admitted | Evaluation,
        report: ProblemReport | None,
    ) -> None:
        """Bring one accepted request to its evaluation, and into the store."""
        with self._telemetry.evaluation(opened.accepted):
            await self._carry(opened, request, admitted, report)
            if opened.stopping:
                self._telemetry.stopped()

    async def _carry(
        self,
        opened: OpenRequest,
        request: EvaluateRequest,
        admitted: Admitted | Evaluation,
        report: ProblemReport | None,
    ) -> None:
        accepted = opened.accepted
        log = _log.bind(
            evaluation_id=accepted.evaluation_id, request_id=accepted.request_id, client_id=accepted.client_id
        )
        key: str | None = None
        try:
            if isinstance(admitted, Evaluation):
                found = admitted
            else:
                recent = self._recent.get(admitted.cache_key) if not request.fresh else None
                if recent is not None:
                    found = recent
                else:
                    key = admitted.cache_key
                    if report is None:
                        report = await self._audits.report_for(
                            opened, request.accept_refused_problem, admitted.job.problem
                        )
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
        own = _as_of(accepted, found, report)
        self._note(own, accepted, found.evaluation_id)
        await self.finish(opened, own, key)

    async def known(self, cache_key: str) -> Evaluation | None:
        """The evaluation that answers an equal request, if there is one."""
        found = self._recent.get(cache_key)
        if found is None:
            found = await self._store.cached(cache_key)
            if found is not None:
                self._remember(cache_key, replace(found, from_cache=True))
        return found

    def remembered(self, cache_key: str) -> Evaluation | None:
        """As `known`, of those in memory."""
        return self._recent.get(cache_key)

    async def answer_new(
        self, accepted: AcceptedRequest, cached: Evaluation, report: ProblemReport
    ) -> Evaluation | None:
        """As `answer`, where no request of this id was ever seen; else `None`, and nothing has happened."""
        own = replace(_as_of(accepted, cached, report), from_cache=True)
        if not await self._store.answer_new(accepted, own):
            return None
        with self._telemetry.evaluation(accepted):
            self._note(own, accepted, cached.evaluation_id)
        return own

    async def answer(self, accepted: AcceptedRequest, cached: Evaluation, report: ProblemReport | None) -> Evaluation:
        """A request whose evaluation is known: answered and stored in one step.

        Raises:
            StoreUnavailable: nothing was promised.
            EvaluatorFault: another server carries it out.
        """
        with self._telemetry.evaluation(accepted):
            own = replace(_as_of(accepted, cached, report), from_cache=True)
            await self._store.answer(accepted, own)
            self._note(own, accepted, cached.evaluation_id)
            return own

    def _note(self, evaluation: Evaluation, accepted: AcceptedRequest, answered_from: str) -> None:
        self._metrics.evaluated(evaluation)
        self._telemetry.evaluated(evaluation, answered_from)
        _log.info(
            "evaluated",
            evaluation_id=accepted.evaluation_id,
            request_id=accepted.request_id,
            client_id=accepted.client_id,
            verdict=evaluation.verdict.value if evaluation.verdict is not None else "",
            from_cache=evaluation.from_cache,
        )

    async def finish(
        self, opened: OpenRequest, evaluation: Evaluation, cache_key: str | None, *, state: str = DONE
    ) -> None:
        """Store the end of a request, and tell whoever waits for it."""
        opened.ending = True
        try:
            await self._store.finish(opened.accepted.request_id, evaluation, cache_key, state=state)
        except StoreUnavailable as error:
            # Kept until the store takes it: the same request_id asks again.
            opened.unsaved = (evaluation, cache_key)
            opened.result.set_exception(error)
            return
        self._requests.close(opened)
        opened.result.set_result(evaluation)

    async def save_again(self, opened: OpenRequest) -> Evaluation:
        """Store an evaluation that the store did not take before.

        Raises:
            StoreUnavailable: it still does not.
        """
        assert opened.unsaved is not None
        evaluation, cache_key = opened.unsaved
        await self._store.finish(opened.accepted.request_id, evaluation, cache_key)
        self._requests.close(opened)
        return evaluation

    async def _work(self, opened: OpenRequest, request: EvaluateRequest, admitted: Admitted) -> Evaluation:
        job = admitted.job
        if why := self._lives.why_not(admitted.cache_key):
            return _takes_down(job, why)

        async def action(progress: ProgressCallback) -> Evaluation:
            async def attempt() -> Evaluation:
                try:
                    evaluation = await self._executor.evaluate(job, progress)
                    if evaluation.verdict is Verdict.EVALUATOR_FAULT:
                        raise ExecutorFault(evaluation.message)
                except ExecutorFault:
                    self._metrics.fault()
                    self._telemetry.fault()
                    raise
                return evaluation

            async with self._lives.running(admitted.cache_key, f"evaluation {job.evaluation_id}"):
                evaluation = await once_more(attempt, progress, job.evaluation_id)
            self._telemetry.ran(evaluation)
            if evaluation.verdict not in NEVER_CACHED:
                findings = admitted.findings + evaluation.findings
                self._remember(admitted.cache_key, replace(evaluation, findings=findings, from_cache=True))
            return evaluation

        ticket = self._scheduler.submit(
            work_key(admitted, request),
            request.client_id,
            action,
            opened.tell,
            promised=True,
            alone=self._lives.is_to_run_alone(admitted.cache_key),
        )
        opened.ticket = ticket
        opened.submitted.set()
        return await ticket.wait()

    def _remember(self, cache_key: str, evaluation: Evaluation) -> None:
        self._recent[cache_key] = evaluation
        self._recent.use(cache_key)

    async def _fail(self, opened: OpenRequest, error: CallRefused) -> None:
        opened.ending = True
        self._metrics.not_evaluated(error.reason.value)
        self._telemetry.not_evaluated(error.reason.value)
        if not isinstance(error, Draining):
            # May be sent again under the same id. Where even that cannot be written, the next start carries it out.
            with contextlib.suppress(StoreUnavailable):
                await self._store.abandon(opened.accepted.request_id)
        self._requests.close(opened)
        if not opened.result.done():
            opened.result.set_exception(error)


def _takes_down(job: Job, why: str) -> Evaluation:
    return Evaluation(
        evaluation_id=job.evaluation_id,
        problem_digest=job.problem.digest,
        candidate_digest=digest_of(job.candidate.source),
        verdict=Verdict.CRASHED,
        message=why,
        language=job.language,
        effort=job.effort,
        baseline=job.baseline,
    )


def _as_of(accepted: AcceptedRequest, found: Evaluation, report: ProblemReport | None) -> Evaluation:
    """What was found, as the evaluation of this request."""
    return replace(
        found,
        evaluation_id=accepted.evaluation_id,
        request_id=accepted.request_id,
        created_at=datetime.now(UTC),
        problem_accepted_with_mark=report is not None and report.accepted_with_mark,
    )


def work_key(admitted: Admitted, request: EvaluateRequest) -> str:
    """What the work of a request is known by: equal requests join it."""
    # A fresh measurement begins after it was asked for: it never joins one that is under way.
    return f"{admitted.cache_key} {admitted.job.evaluation_id}" if request.fresh else admitted.cache_key
