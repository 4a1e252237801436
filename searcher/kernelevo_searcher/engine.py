"""Carries a run out: asks the policy what to do, does it, and writes every event before acting on it.

One loop decides and starts; what it starts runs as tasks that write what came back and wake the loop. Nothing waits for a slow
one. The log alone says where the run stands: the engine can be killed at any moment, and another one goes on from the log,
sending again, under their own ids, the evaluations that were under way.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from typing import TYPE_CHECKING

from kernelevo_api.pool import NotEvaluated
from kernelevo_api.types import Candidate, Effort, EvaluateRequest, Language, Problem
from kernelevo_searcher import policy
from kernelevo_searcher.dedupe import normal_digest
from kernelevo_searcher.events import (
    CandidateProposed,
    DuplicateSkipped,
    EvaluationFailed,
    EvaluationFinished,
    EvaluationStarted,
    EvaluatorChanged,
    EvaluatorsConnected,
    Event,
    ModelCallFailed,
    ModelCallFinished,
    ModelCallStarted,
    NothingToTune,
    ParameterValue,
    Paused,
    ProblemRegistered,
    Record,
    Resumed,
    RunFinished,
    RunResumed,
    RunSettings,
    RunStarted,
    StartCandidate,
    StopDecided,
    VerificationFinished,
    VerificationStarted,
    text_digest,
)
from kernelevo_searcher.proposers import (
    ActionKind,
    CandidateView,
    EndpointUnreachable,
    Proposal,
    ProposalRequest,
    Proposer,
    ProposerError,
    ReplyOutcome,
    Usage,
)
from kernelevo_searcher.state import RunState, replay
from kernelevo_searcher.tuner.tuner import Tuner

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kernelevo_api.pool import EvaluatorPool, Notice
    from kernelevo_api.types import Evaluation, Progress, Ratio
    from kernelevo_searcher.store import RunStore

__all__ = ["Engine", "start_events"]

REFERENCE_SEED = "reference"
"""Name of the seed that is the reference itself."""
_EXAMPLES = 3
_FIRST_BACKOFF_S = 5.0
_LONGEST_BACKOFF_S = 120.0


def start_events(
    *,
    version: str,
    problem: Problem,
    settings: RunSettings,
    start: Sequence[tuple[str, str]],
) -> tuple[RunStarted, tuple[str, ...]]:
    """The first event of a new run, and the texts that it refers to.

    Args:
        start: name and source of each kernel that the user brought.
    """
    event = RunStarted(
        run_id=str(uuid.uuid4()),
        version=version,
        problem_name=problem.name,
        problem_digest=text_digest(problem.source),
        settings=settings,
        start=tuple(StartCandidate(name=name, source_digest=text_digest(source)) for name, source in start),
    )
    return event, (problem.source, *(source for _, source in start))


class Engine:
    """One process's work on one run.

    Args:
        store: opened to write, with the run's first event in it.
        pool: evaluators, not yet connected.
        proposer: the model's, if there is one.
        observe: told every event once it is written, with the state that it led to.
        on_progress: told where an evaluation is (candidate's id; empty for the registration), advisory.
        settings: what to go on with, in place of what the log says.
    """

    def __init__(
        self,
        store: RunStore,
        pool: EvaluatorPool,
        proposer: Proposer | None = None,
        *,
        observe: Callable[[Record, RunState], None] | None = None,
        on_progress: Callable[[str, Progress], None] | None = None,
        settings: RunSettings | None = None,
    ) -> None:
        self._store = store
        self._pool = pool
        self._proposer = proposer
        self._observe = observe
        self._on_progress = on_progress
        self._wake = asyncio.Event()
        self._tuner = Tuner(store.text)
        self._paused_by: set[str] = set()
        self._backoff = _FIRST_BACKOFF_S
        self._least_reservation = 1
        self.state = replay(store.records())
        self._resumed = self.state.last_sequence > 1
        self._new_settings = settings or self.state.settings
        self._searched_s = self.state.active_s
        self._began = time.monotonic()
        self._seeds: tuple[tuple[str, str, str], ...] = ()
        """Name, source and proposer of each seed."""
        pool.on_wait = self._evaluators_wait
        pool.on_notice = self._evaluator_changed

    # The log.

    def _write(self, *events: Event, texts: Sequence[str] = ()) -> None:
        for record in self._store.append(*events, texts=texts):
            self.state.apply(record)
            if self._observe is not None:
                self._observe(record, self.state)

    @property
    def _started(self) -> RunStarted:
        assert self.state.started is not None
        return self.state.started

    def _problem(self) -> Problem:
        return Problem(source=self._store.text(self._started.problem_digest), name=self._started.problem_name)

    # The run.

    async def run(self) -> RunState:
        """Work until the run is finished.

        Raises:
            NoEvaluator: none can be used.
            ProblemRefused: the problem cannot be used.
        """
        if self._resumed:
            self._write(RunResumed(settings=self._new_settings), *self._lost_calls())
            if self.state.finished is not None:
                return self.state
        await self._connect()
        try:
            async with asyncio.TaskGroup() as tasks:
                looking = tasks.create_task(self._pool.watch())
                for started in tuple(self.state.in_flight.values()):
                    tasks.create_task(self._evaluate(started))
                await self._loop(tasks)
                looking.cancel()
        except BaseExceptionGroup as group:
            # Whatever fails, fails for one reason; the first task that met it has the message.
            raise group.exceptions[0] from group
        return self.state

    def _lost_calls(self) -> tuple[ModelCallFinished, ...]:
        """Calls in flight when the last process ended: nobody knows what they cost, so their reservation is charged."""
        return tuple(
            ModelCallFinished(
                call_id=call.call_id,
                outcome=ReplyOutcome.LOST,
                usage=Usage(prompt_tokens=call.reserved_tokens, estimated=True),
                detail="the process ended while the call was under way",
            )
            for call in self.state.calls.values()
        )

    async def _connect(self) -> None:
        state = self.state
        capabilities = await self._pool.connect(
            device=state.connected.device if state.connected else state.settings.device
        )
        assert self._pool.device is not None
        if state.connected is None:
            names = tuple(endpoint.name for endpoint in self._pool.endpoints)
            self._write(EvaluatorsConnected(evaluators=names, capabilities=capabilities, device=self._pool.device))
        report = await self._pool.register(
            self._problem(),
            accept_refused=state.settings.accept_refused_problem,
            on_progress=(lambda progress: self._progress("", progress)),
        )
        if state.registered is None:
            self._write(ProblemRegistered(report=report))
        self._seeds = self._find_seeds()

    def _find_seeds(self) -> tuple[tuple[str, str, str], ...]:
        assert self.state.registered is not None
        report = self.state.registered.report
        seeds = [(start.name, self._store.text(start.source_digest), "user") for start in self._started.start]
        seeds += [(seed.name, seed.source, "problem") for seed in report.seeds]
        allowed = report.policy.languages if report.policy is not None else ()
        if self._proposer is not None and (not allowed or Language.TORCH in allowed):
            # A model may begin from it; the tuner would find nothing in it.
            wrapped = f"{self._problem().source.rstrip()}\n\n\nclass ModelNew(Model):\n    pass\n"
            seeds.append((REFERENCE_SEED, wrapped, "problem"))
        return tuple(seeds)

    async def _loop(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            self._wake.clear()
            action = policy.decide(self.state, self._resources(), self._rng("decide"))
            match action:
                case policy.Wait.WAIT:
                    await self._sleep()
                case policy.Finish.FINISH:
                    self._finish()
                    return
                case policy.Stop(reason):
                    self._write(StopDecided(reason=reason))
                case policy.Verify(candidate_ids):
                    self._write(VerificationStarted(candidate_ids=candidate_ids))
                case policy.Seed(index):
                    name, source, proposer = self._seeds[index]
                    self._propose(source, ActionKind.SEED, proposer=proposer, idea=name)
                case policy.Evaluate():
                    tasks.create_task(self._evaluate(self._start_evaluation(action)))
                case policy.Propose(ActionKind.TUNE, parent_id):
                    assert parent_id is not None
                    self._tune(parent_id)
                case policy.Propose():
                    request = self._request(action)
                    started = self._start_call(action, request)
                    if started is not None:
                        tasks.create_task(self._ask(started, request))
            # Tasks that were started get their turn, however busy the loop is.
            await asyncio.sleep(0)

    def _resources(self) -> policy.Resources:
        return policy.Resources(
            slots=self._pool.slots,
            model_actions=self._proposer.actions() if self._proposer is not None else frozenset(),
            seeds=tuple(text_digest(source) for _, source, _ in self._seeds),
            least_reservation=self._least_reservation,
            active_s=self._active_s(),
        )

    def _active_s(self) -> float:
        return self._searched_s + time.monotonic() - self._began

    def _rng(self, purpose: str) -> random.Random:
        # Drawn anew for every decision from where the log stands, so that a resumed run decides as this one would have.
        return random.Random(f"{self.state.settings.seed}:{self.state.last_sequence}:{purpose}")  # noqa: S311

    async def _sleep(self) -> None:
        """Until something comes back, or the time is up."""
        left = None
        if self.state.settings.minutes is not None and self.state.stop is None:
            left = max(0.0, self.state.settings.minutes * 60 - self._active_s()) + 0.05
        try:
            async with asyncio.timeout(left):
                await self._wake.wait()
        except TimeoutError:
            return

    def _finish(self) -> None:
        state = self.state
        verifying = state.verifying.candidate_ids if state.verifying is not None else ()
        best = policy.verified_best([state.candidates[candidate_id] for candidate_id in verifying])
        speedup: Ratio | None = None
        if best is not None:
            timing = best.evaluations[Effort.FINAL].timing
            assert timing is not None
            speedup = timing.confirmation or timing.speedup
        best_id = best.id if best is not None else None
        reason = state.stop.reason if state.stop is not None else ""
        self._write(
            VerificationFinished(best_id=best_id, speedup=speedup),
            RunFinished(best_id=best_id, speedup=speedup, reason=reason),
        )

    # Pausing.

    def _pause(self, who: str, reason: str) -> None:
        if not self._paused_by:
            self._write(Paused(reason=reason))
        self._paused_by.add(who)

    def _unpause(self, who: str) -> None:
        if who in self._paused_by:
            self._paused_by.discard(who)
            if not self._paused_by:
                self._write(Resumed())
            self._wake.set()

    def _evaluators_wait(self, reason: str) -> None:
        if reason:
            self._pause("evaluators", reason)
        else:
            self._unpause("evaluators")

    def _evaluator_changed(self, notice: Notice) -> None:
        if self.state.finished is None:
            self._write(EvaluatorChanged(evaluator=notice.evaluator, change=notice.change, reason=notice.reason))
            # There may be room for more now.
            self._wake.set()

    # Proposing.

    def _propose(
        self,
        source: str,
        action: ActionKind,
        *,
        before: tuple[Event, ...] = (),
        texts: tuple[str, ...] = (),
        parent_id: str | None = None,
        idea: str = "",
        proposer: str = "",
        parameters: tuple[ParameterValue, ...] = (),
        call_id: str | None = None,
    ) -> None:
        """Log a candidate, or that it is one already, in one transaction with the events that led to it."""
        digest, normal = text_digest(source), normal_digest(source)
        known = self.state.by_normal_digest.get(normal)
        event: Event
        if known is not None:
            event = DuplicateSkipped(
                source_digest=digest,
                candidate_id=known,
                action=action,
                parent_id=parent_id,
                idea=idea,
                proposer=proposer,
                call_id=call_id,
            )
        else:
            event = CandidateProposed(
                candidate_id=f"c{len(self.state.candidates) + 1}",
                source_digest=digest,
                normal_digest=normal,
                action=action,
                parent_id=parent_id,
                idea=idea,
                proposer=proposer,
                parameters=parameters,
                call_id=call_id,
                language=self.state.settings.language if action is not ActionKind.SEED else None,
            )
        self._write(*before, event, texts=(source, *texts))

    def _tune(self, parent_id: str) -> None:
        tuned = self._tuner.propose(self.state, parent_id, self._rng("tune"))
        if tuned is None:
            self._write(NothingToTune(parent_id=parent_id))
            return
        self._propose(
            tuned.source,
            ActionKind.TUNE,
            parent_id=tuned.parent_id,
            idea=tuned.idea,
            proposer="tuner",
            parameters=tuned.parameters,
        )

    def _view(self, candidate_id: str) -> CandidateView:
        source = self._store.text(self.state.candidates[candidate_id].proposed.source_digest)
        return self.state.view(candidate_id, source)

    def _request(self, action: policy.Propose) -> ProposalRequest:
        state = self.state
        assert state.registered is not None and state.connected is not None
        parent = self._view(action.parent_id) if action.parent_id is not None else None
        rng = self._rng("request")
        ranked = [candidate.id for candidate in state.ranked() if candidate.id != action.parent_id]
        # The best, and others from further down the list: examples that contrast say more than three alike.
        chosen = ranked[:1] + sorted(rng.sample(ranked[1:], min(len(ranked[1:]), _EXAMPLES - 1)), key=ranked.index)
        failure = parent.evaluation if parent is not None and action.action is ActionKind.FIX else None
        return ProposalRequest(
            action=action.action,
            problem_source=self._problem().source,
            report=state.registered.report,
            capabilities=state.connected.capabilities,
            parent=parent,
            tried=state.ledger(),
            examples=tuple(self._view(candidate_id) for candidate_id in chosen),
            failure=failure,
            language=state.settings.language,
            tokens_left=state.budget_left,
            hints=state.settings.hints,
            seed=rng.getrandbits(31),
        )

    def _start_call(self, action: policy.Propose, request: ProposalRequest) -> ModelCallStarted | None:
        assert self._proposer is not None
        reserved = self._proposer.reserve(request)
        if reserved > self.state.budget_left:
            # What is left pays for no call of this size; smaller ones were not asked for.
            self._least_reservation = max(self._least_reservation, self.state.budget_left + 1)
            return None
        started = ModelCallStarted(
            call_id=f"m{self.state.calls_started + 1}",
            action=action.action,
            model=self._proposer.model,
            reserved_tokens=reserved,
            parent_id=action.parent_id,
        )
        self._write(started)
        return started

    async def _ask(self, started: ModelCallStarted, request: ProposalRequest) -> None:
        assert self._proposer is not None
        try:
            proposal = await self._proposer.propose(request)
        except EndpointUnreachable as error:
            self._write(ModelCallFailed(call_id=started.call_id, message=str(error), usage=error.usage))
            await self._wait_for_endpoint(started.call_id, error)
        except ProposerError as error:
            self._write(ModelCallFailed(call_id=started.call_id, message=str(error), usage=error.usage, refused=True))
        else:
            self._backoff = _FIRST_BACKOFF_S
            self._settle(started, proposal)
        self._wake.set()

    async def _wait_for_endpoint(self, who: str, error: EndpointUnreachable) -> None:
        self._pause(who, str(error))
        delay = error.retry_after_s or self._backoff
        self._backoff = min(2 * self._backoff, _LONGEST_BACKOFF_S)
        try:
            await asyncio.sleep(delay)
        finally:
            self._unpause(who)

    def _settle(self, started: ModelCallStarted, proposal: Proposal) -> None:
        # A reply may hold text that cannot be stored as UTF-8.
        text = _storable(proposal.text)
        source = _storable(proposal.source) if proposal.source is not None else None
        finished = ModelCallFinished(
            call_id=started.call_id,
            outcome=proposal.outcome,
            usage=proposal.usage,
            text_digest=text_digest(text),
            source_digest=text_digest(source) if source is not None else None,
            idea=_storable(proposal.idea),
            detail=_storable(proposal.detail),
        )
        if source is None:
            self._write(finished, texts=(text,))
            return
        self._propose(
            source,
            started.action,
            before=(finished,),
            texts=(text,),
            parent_id=started.parent_id,
            idea=finished.idea,
            proposer=proposal.model or started.model,
            call_id=started.call_id,
        )

    # Evaluating.

    def _start_evaluation(self, action: policy.Evaluate) -> EvaluationStarted:
        attempt = self.state.attempts[action.candidate_id, action.effort] + 1
        name = f"{self._started.run_id}/{action.candidate_id}/{action.effort.value}/{attempt}"
        started = EvaluationStarted(
            request_id=str(uuid.uuid5(uuid.NAMESPACE_OID, name)),
            candidate_id=action.candidate_id,
            effort=action.effort,
            bound_speedup=action.bound_speedup,
            evaluator=self._pool.choose(),
        )
        self._write(started)
        return started

    async def _evaluate(self, started: EvaluationStarted) -> None:
        candidate = self.state.candidates[started.candidate_id]
        request = EvaluateRequest(
            request_id=started.request_id,
            problem_digest=self._started.problem_digest,
            candidate=Candidate(
                source=self._store.text(candidate.proposed.source_digest), language=candidate.proposed.language
            ),
            effort=started.effort,
            baseline=self.state.settings.baseline,
            bound_speedup=started.bound_speedup,
            device=self._pool.device,
            client_id=f"kernelevo-{self._started.run_id[:8]}",
            accept_refused_problem=self.state.settings.accept_refused_problem,
            # A verification answered from a store would verify nothing.
            fresh=started.effort is Effort.FINAL,
        )
        try:
            evaluation = await self._pool.evaluate(
                request,
                preferred=started.evaluator,
                on_progress=(lambda progress: self._progress(started.candidate_id, progress)),
            )
        except NotEvaluated as error:
            self._write(
                EvaluationFailed(
                    request_id=started.request_id,
                    candidate_id=started.candidate_id,
                    reason=error.reason,
                    message=str(error),
                )
            )
        else:
            self._record(started, evaluation)
        self._wake.set()

    def _record(self, started: EvaluationStarted, evaluation: Evaluation) -> None:
        self._write(
            EvaluationFinished(request_id=started.request_id, candidate_id=started.candidate_id, evaluation=evaluation)
        )

    def _progress(self, candidate_id: str, progress: Progress) -> None:
        if self._on_progress is not None:
            self._on_progress(candidate_id, progress)


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
