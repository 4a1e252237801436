"""What the service does, in plain values: the one object behind the API.

Takes requests in, joins or replays the known ones, hands the new ones to `Fulfilment`, stops them, and answers look-ups. A
request lives from the moment it is accepted to the moment its evaluation is stored, whoever is connected meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import structlog

from kernelevo_api.errors import (
    CallRefused,
    Draining,
    FieldViolation,
    InvalidRequest,
    RequestIdReused,
    StoreUnavailable,
    UnknownEvaluation,
    UnknownProblem,
)
from kernelevo_api.types import (
    BaselineKind,
    Capabilities,
    Effort,
    Evaluation,
    ProblemReport,
    Progress,
    QueueState,
    Stage,
    Verdict,
)
from kernelevo_evaluator import pages
from kernelevo_evaluator.admission import Admission, Admitted, content_key, is_digest
from kernelevo_evaluator.apart import Reader
from kernelevo_evaluator.audits import Audits
from kernelevo_evaluator.fulfilment import Fulfilment, work_key
from kernelevo_evaluator.requests import OpenRequest, OpenRequests
from kernelevo_evaluator.scheduler import Scheduler
from kernelevo_evaluator.sources import digest_of
from kernelevo_evaluator.store import ABANDONED, ACCEPTED, DONE, AcceptedRequest

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from kernelevo_api.types import EvaluateRequest, RegisterProblemRequest
    from kernelevo_evaluator.executor import Executor, ExecutorFacts
    from kernelevo_evaluator.lives import Lives
    from kernelevo_evaluator.metrics import Metrics
    from kernelevo_evaluator.queue import Quota
    from kernelevo_evaluator.requests import ProgressListener
    from kernelevo_evaluator.settings import EvaluatorSettings
    from kernelevo_evaluator.store import Store
    from kernelevo_evaluator.telemetry import Telemetry

API_VERSION = "v1"

_log = structlog.get_logger("kernelevo.evaluator")


class Evaluations:
    """Everything behind the API. Belongs to one event loop."""

    def __init__(
        self,
        *,
        executor: Executor,
        facts: ExecutorFacts,
        store: Store,
        lives: Lives,
        settings: EvaluatorSettings,
        evaluator_version: str,
        metrics: Metrics,
        telemetry: Telemetry,
    ) -> None:
        self._executor = executor
        self._facts = facts
        self._store = store
        self._lives = lives
        self._life_id = str(uuid.uuid4())
        self._settings = settings
        self._version = evaluator_version
        reader = Reader()
        self._admission = Admission(
            facts, evaluator_version, settings.maximum_source_bytes, reader, settings.deep_checks
        )
        self._scheduler = Scheduler(
            lambda: executor.concurrency, settings.queue_capacity, settings.queue_capacity_per_client
        )
        executor.on_room = self._scheduler.pump

        def waited(seconds: float) -> None:
            metrics.waited(seconds)
            telemetry.waited(seconds)

        self._scheduler.on_wait = waited
        metrics.watch(executor, self.capabilities, lambda: executor.healthy and not self._scheduler.draining)
        self._requests = OpenRequests(settings.grace_s, lambda opened: self._spawn(self._give_up(opened)))
        self._audits = Audits(
            executor=executor,
            scheduler=self._scheduler,
            store=store,
            reader=reader,
            settings=settings,
            environment=self._admission.environment_key(),
            limits=facts.default_limits,
            lives=lives,
            telemetry=telemetry,
        )
        self._fulfilment = Fulfilment(
            executor=executor,
            scheduler=self._scheduler,
            store=store,
            audits=self._audits,
            requests=self._requests,
            lives=lives,
            metrics=metrics,
            telemetry=telemetry,
        )
        self._tasks: set[asyncio.Task[None]] = set()

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
        self._requests.keep_all()
        # What ends these is the end of their work, which has come.
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def hurry(self) -> None:
        """Let `drain` wait no longer."""
        self._scheduler.hurry()

    def set_quotas(self, quotas: Mapping[str, Quota]) -> None:
        """Give clients bounds of their own in queue and lanes."""
        self._scheduler.set_quotas(quotas)

    @property
    def draining(self) -> bool:
        """Whether new work is refused."""
        return self._scheduler.draining

    # --- Lookups

    def capabilities(self) -> Capabilities:
        """What this evaluator can do, and how busy it is."""
        facts, faults = self._facts, self._executor.device_faults
        return Capabilities(
            api_version=API_VERSION,
            protocol_version=facts.protocol_version,
            evaluator_version=self._version,
            instance_id=self._store.instance_id,
            life_id=self._life_id,
            devices=tuple(
                replace(device, healthy=device.healthy and device.id not in faults, fault=faults.get(device.id, ""))
                for device in self._executor.devices or facts.devices
            ),
            languages=facts.languages,
            toolchain=facts.toolchain,
            sandbox=self._executor.sandbox or facts.sandbox,
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
        opened = self._requests.find(request_id=request_id, evaluation_id=evaluation_id)
        if opened is not None and opened.unsaved is None:
            return opened.progress
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
        """One page of recorded evaluations, newest first, and the token of the next.

        Raises:
            InvalidRequest
        """
        size = pages.page_size(size)
        if problem_digest and not is_digest(problem_digest):
            raise InvalidRequest(
                "problem_digest must be 64 lower-case hexadecimal digits",
                violations=[FieldViolation("problem_digest", "must be 64 lower-case hexadecimal digits")],
            )
        before = pages.read_token(token, problem_digest) if token else None
        found, following = await self._store.page(problem_digest, before, size)
        return found, pages.write_token(following, problem_digest) if following is not None else ""

    # --- Work

    async def register(self, request: RegisterProblemRequest, listener: ProgressListener) -> ProblemReport:
        """The problem's report, from the store or from its audit.

        Raises:
            ProblemRefused, TooLarge, QueueFull, Draining, EvaluatorFault, StoreUnavailable
        """
        return await self._audits.register(request, listener)

    async def answer(self, request: EvaluateRequest) -> Evaluation | None:
        """The evaluation of a new request that can be answered from memory, as most of a busy search's can: in one step of the
        store. `None` where there is more to it: `evaluate` says what.

        Raises:
            CallRefused: as `evaluate`.
        """
        known = self._audits.remembered(request) if not request.fresh and not self._scheduler.draining else None
        if known is None:
            return None
        self._admission.check(request)
        async with self._requests.lock(request.request_id):
            if request.request_id in self._requests:
                return None
            source, report = known
            admitted = await self._admission.resolve(request, source, report, str(uuid.uuid4()))
            cached = self._fulfilment.remembered(admitted.cache_key) if isinstance(admitted, Admitted) else None
            if cached is None or not isinstance(admitted, Admitted):
                return None
            accepted = AcceptedRequest(
                request_id=request.request_id,
                evaluation_id=admitted.job.evaluation_id,
                client_id=request.client_id,
                content=content_key(request),
                state=ACCEPTED,
                request=request,
            )
            return await self._fulfilment.answer_new(accepted, cached, report)

    async def evaluate(self, request: EvaluateRequest, listener: ProgressListener) -> Evaluation:
        """Join, replay or carry out a request. Being cancelled here detaches one stream, and the grace period begins.

        Raises:
            CallRefused: it is not evaluated; the subclass says why.
        """
        self._admission.check(request)
        content = content_key(request)
        async with self._requests.lock(request.request_id):
            found = await self._known(request, content)
            if isinstance(found, Evaluation):
                return found
            opened = found if isinstance(found, OpenRequest) else await self._accept(request, content, found)
            if isinstance(opened, Evaluation):
                return opened
            # Without an await in between: the request is never seen without the stream that asked for it.
            result = self._requests.attach(opened, listener)
        try:
            return await result
        finally:
            self._requests.detach(opened, listener)

    async def cancel(
        self, *, request_id: str | None, evaluation_id: str | None, client_id: str
    ) -> tuple[bool, Evaluation]:
        """Detach a request from its work; returns when the work's processes are gone, if it was the last.

        Raises:
            UnknownEvaluation: nothing is known under this id, or it is another client's.
        """
        opened = self._requests.find(request_id=request_id, evaluation_id=evaluation_id)
        if opened is None or opened.unsaved is not None:
            found = await self.get(request_id=request_id, evaluation_id=evaluation_id)
            if isinstance(found, Progress):
                raise UnknownEvaluation("this request was not begun")
            return False, found
        if client_id and client_id != opened.accepted.client_id:
            raise UnknownEvaluation("this evaluation was asked for by another client")
        stopped = await self._stop(opened, "cancelled on request", DONE)
        return stopped, await asyncio.shield(opened.result)

    async def _known(self, request: EvaluateRequest, content: str) -> OpenRequest | Evaluation | AcceptedRequest | None:
        opened = self._requests.find(request_id=request.request_id)
        if opened is not None and opened.stopping:
            await asyncio.wait([opened.result])
            opened = None
        if opened is not None:
            _same_content(opened.accepted, content)
            if opened.unsaved is None:
                return opened
            return await self._fulfilment.save_again(opened)
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
    ) -> OpenRequest | Evaluation:
        if self._scheduler.draining:
            raise Draining("this evaluator is shutting down; try another, or later")
        source = await self._audits.problem_of(request)
        report = await self._audits.known(source.digest, request.accept_refused_problem)
        evaluation_id = before.evaluation_id if before is not None else str(uuid.uuid4())
        admitted = await self._admission.resolve(request, source, report or ProblemReport(), evaluation_id)
        cached = None
        if before is None and request.fresh and isinstance(admitted, Admitted):
            # Somebody asks for it anew, whatever it did before.
            self._lives.forgive(admitted.cache_key)
        if isinstance(admitted, Admitted) and not request.fresh:
            cached = await self._fulfilment.known(admitted.cache_key)
        if cached is None and isinstance(admitted, Admitted) and not promised:
            key = work_key(admitted, request)
            if not self._scheduler.joins(key):
                # Those that wait for their problem's audit will want a place too.
                waiting = self._audits.waiting
                self._scheduler.check(request.client_id, waiting.total(), waiting[request.client_id])
        accepted = AcceptedRequest(
            request_id=request.request_id,
            evaluation_id=evaluation_id,
            client_id=request.client_id,
            content=content,
            state=ACCEPTED,
            # By digest where the problem is stored: its source is not kept once more.
            request=replace(request, problem=None, problem_digest=source.digest) if report is not None else request,
        )
        if cached is not None:
            return await self._fulfilment.answer(accepted, cached, report)
        try:
            await self._store.accept(accepted)
        except UnknownProblem:
            # Taken out of the store after it was read.
            self._audits.forget(source.digest)
            if request.problem is None:
                raise
            accepted, report = replace(accepted, request=request), None
            await self._store.accept(accepted)
        opened = self._requests.open(accepted)
        self._spawn(self._fulfilment.carry(opened, request, admitted, report))
        return opened

    async def _stop(self, opened: OpenRequest, why: str, state: str) -> bool:
        """End a request without a verdict on its candidate; whether its work was stopped."""
        if opened.stopping:
            await asyncio.wait([opened.result])
            return False
        await opened.submitted.wait()
        if opened.result.done() or opened.stopping or opened.ending:
            await asyncio.wait([opened.result])
            return False
        opened.stopping = True
        stopped = False
        if opened.ticket is not None:
            stopped = opened.ticket.give_back()
            if stopped:
                await opened.ticket.ended()
        accepted, request = opened.accepted, opened.accepted.request
        _log.info(
            "stopped",
            evaluation_id=accepted.evaluation_id,
            request_id=accepted.request_id,
            client_id=accepted.client_id,
            why=why,
            work_stopped=stopped,
        )
        evaluation = Evaluation(
            evaluation_id=accepted.evaluation_id,
            request_id=accepted.request_id,
            problem_digest=request.problem_digest or "",
            candidate_digest=digest_of(request.candidate.source) if request.candidate is not None else "",
            verdict=Verdict.CANCELLED,
            stage=opened.progress.stage,
            message=why,
            effort=request.effort or Effort.FULL,
            baseline=request.baseline or BaselineKind.EAGER,
            created_at=datetime.now(UTC),
        )
        await self._fulfilment.finish(opened, evaluation, None, state=state)
        return stopped

    async def _give_up(self, opened: OpenRequest) -> None:
        await self._stop(opened, "the client went away and did not come back in time", ABANDONED)

    async def _recover(self, accepted: AcceptedRequest) -> None:
        request = accepted.request
        log = _log.bind(evaluation_id=accepted.evaluation_id, request_id=accepted.request_id)
        async with self._requests.lock(accepted.request_id):
            if accepted.request_id in self._requests:
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

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _same_content(accepted: AcceptedRequest, content: str) -> None:
    if accepted.content != content:
        raise RequestIdReused(
            f"request_id {accepted.request_id} was used before with other content; a new request needs a new id",
            violations=[FieldViolation("request_id", "was used before with other content")],
        )
