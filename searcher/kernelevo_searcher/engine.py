"""Carries a run out: asks the policy what to do, does it, and writes every event before acting on it.

One loop decides and starts; what it starts runs as tasks that write what came back and wake the loop. Nothing waits for a slow
one. The log alone says where the run stands: the engine can be killed at any moment, and another one goes on from the log,
sending again, under their own ids, the evaluations that were under way.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

from kernelevo_api.pool import NotEvaluated
from kernelevo_searcher import policy
from kernelevo_searcher.drain import Drain
from kernelevo_searcher.events import (
    EvaluationFailed,
    EvaluationStarted,
    EvaluatorChanged,
    EvaluatorsConnected,
    ProblemRegistered,
    Record,
    RunResumed,
    RunSettings,
    RunStarted,
    SlotsChanged,
    StartCandidate,
    text_digest,
)
from kernelevo_searcher.forecast import Forecast, forecast
from kernelevo_searcher.journal import Journal, Pauses
from kernelevo_searcher.memory.recall import recollect
from kernelevo_searcher.model_calls import ModelCalls
from kernelevo_searcher.proposers import ActionKind, Proposer, Usage
from kernelevo_searcher.steps import Steps

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from datetime import datetime

    from kernelevo_api.pool import EvaluatorPool, Notice
    from kernelevo_api.types import Problem, Progress
    from kernelevo_searcher.state import RunState
    from kernelevo_searcher.store import RunStore

__all__ = ["Engine", "live_resources", "start_events"]


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


def live_resources(journal: Journal, steps: Steps, calls: ModelCalls, now: datetime) -> policy.Resources:
    """What a run that calls models and evaluators itself decides by, besides its state: follows from the log and the time."""
    return policy.Resources(
        slots=journal.state.slots,
        models=calls.resources(),
        seeds=steps.seed_digests,
        active_s=journal.state.active_at(now),
    )


class Engine:
    """One process's work on one run.

    Args:
        store: opened to write, with the run's first event in it.
        pool: evaluators, not yet connected.
        proposers: of the models, by label.
        cost: dollars that a usage of a model costs; absent where its price is not known.
        observe: told every event once it is written, with the state that it led to.
        on_progress: told where an evaluation is (candidate's id; empty for the registration), advisory.
        settings: what to go on with, in place of what the log says.
        drain: asks the run to end early.
        on_forecast: told, before the search begins or goes on, what is left of the budget buys.
    """

    def __init__(
        self,
        store: RunStore,
        pool: EvaluatorPool,
        proposers: Mapping[str, Proposer] | None = None,
        *,
        cost: Callable[[str, Usage], float | None] | None = None,
        observe: Callable[[Record, RunState], None] | None = None,
        on_progress: Callable[[str, Progress], None] | None = None,
        settings: RunSettings | None = None,
        drain: Drain | None = None,
        on_forecast: Callable[[Forecast], None] | None = None,
    ) -> None:
        self._journal = Journal(store, observe)
        self._pool = pool
        self._on_progress = on_progress
        self._on_forecast = on_forecast
        self._wake = asyncio.Event()
        self._drain = drain or Drain()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pauses = Pauses(self._journal, self._wake.set)
        self._steps = Steps(self._journal, with_models=bool(proposers))
        self._calls = ModelCalls(
            self._journal,
            proposers or {},
            self._pauses,
            propose=self._steps.propose,
            wake=self._wake.set,
            cost=cost,
        )
        self._new_settings = settings or self.state.settings
        # What was only made is begun, unless it is asked for something else than it was made with.
        self._resumed = self.state.last_sequence > 1 or self._new_settings != self.state.settings
        pool.on_wait = self._evaluators_wait
        pool.on_notice = self._evaluator_changed

    @property
    def state(self) -> RunState:
        """Where the run stands."""
        return self._journal.state

    # The run.

    async def run(self) -> RunState:
        """Work until the run is finished, or until it has drained: then `finished` is absent, and the run can be resumed.

        Raises:
            NoEvaluator: none can be used.
            ProblemRefused: the problem cannot be used.
            BadInput: the bank of lessons cannot be read.
        """
        if self._resumed:
            self._journal.write(RunResumed(settings=self._new_settings), *self._calls.settle_lost())
            if self.state.finished is not None:
                return self.state
        async with self._drain.preparing():
            await self._connect()
        if self._drain.asked:
            return self.state
        if self._on_forecast is not None and self.state.stop is None:
            self._on_forecast(self._forecast())
        try:
            async with asyncio.TaskGroup() as tasks:
                self._begin(tasks, self._pool.watch())
                for started in tuple(self.state.in_flight.values()):
                    self._begin(tasks, self._evaluate(started))
                with self._drain.telling(self._wake.set):
                    await self._loop(tasks)
                # Who still waits, waits for an endpoint that does not answer.
                for task in tuple(self._tasks):
                    task.cancel()
        except BaseExceptionGroup as group:
            # Whatever fails, fails for one reason; the first task that met it has the message.
            raise group.exceptions[0] from group
        return self.state

    def _begin(self, tasks: asyncio.TaskGroup, work: Coroutine[None, None, None]) -> None:
        task = tasks.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self) -> None:
        state = self.state
        capabilities = await self._pool.connect(
            device=state.connected.device if state.connected else state.settings.device,
            others=self._new_settings.verify_on,
        )
        assert self._pool.device is not None
        if state.connected is None:
            names = tuple(endpoint.name for endpoint in self._pool.endpoints)
            self._journal.write(
                EvaluatorsConnected(evaluators=names, capabilities=capabilities, device=self._pool.device)
            )
        report = await self._pool.register(
            self._journal.problem(),
            accept_refused=state.settings.accept_refused_problem,
            with_seeds=state.registered is None,
            on_progress=(lambda progress: self._progress("", progress)),
        )
        if state.registered is None:
            self._journal.write(ProblemRegistered(report=report))
        recollect(self._journal)

    def _forecast(self) -> Forecast:
        best = self.state.best
        if best is not None:
            kernel = self._journal.text(best.proposed.source_digest)
        else:
            kernel = self._steps.seeds[0][1] if self._steps.seeds else self._journal.problem().source
        return forecast(self.state, self._calls.costs(kernel))

    async def _loop(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            self._wake.clear()
            with self._journal.moment() as now:
                action = self._decide(now)
                if self._drain.asked and action is not policy.Finish.FINISH:
                    if self._drained():
                        return
                    action = policy.Wait.WAIT
                self._take(tasks, action)
            if action is policy.Finish.FINISH:
                return
            if action is policy.Wait.WAIT:
                await self._sleep()
            # Tasks that were started get their turn, however busy the loop is.
            await asyncio.sleep(0)

    def _decide(self, now: datetime) -> policy.Action:
        if self._pool.slots != self.state.slots:
            self._journal.write(SlotsChanged(slots=self._pool.slots))
        resources = live_resources(self._journal, self._steps, self._calls, now)
        return policy.decide(self.state, resources, self._journal.rng("decide"))

    def _take(self, tasks: asyncio.TaskGroup, action: policy.Action) -> None:
        """Carry an action out, as far as nobody is waited for."""
        match action:
            case policy.Wait.WAIT:
                return
            case policy.Evaluate():
                started = self._steps.start_evaluation(action, self._pool.choose(device=action.device))
                self._begin(tasks, self._evaluate(started))
            case policy.Propose(kind) if kind is not ActionKind.TUNE:
                request = self._calls.request(action)
                call = self._calls.start(action, request)
                if call is not None:
                    self._begin(tasks, self._calls.ask(call, request))
            case _:
                self._steps.take(action)

    def _drained(self) -> bool:
        """Whether nobody works for us any more. What no evaluator holds, as none answers, is sent again by who resumes."""
        return not self.state.calls and not self._pool.outstanding

    async def _sleep(self) -> None:
        """Until something comes back, or the time is up."""
        left = None
        if self.state.settings.minutes is not None and self.state.stop is None and not self._drain.asked:
            left = max(0.0, self.state.settings.minutes * 60 - self.state.active_at(self._journal.now())) + 0.05
        try:
            async with asyncio.timeout(left):
                await self._wake.wait()
        except TimeoutError:
            return

    def _evaluators_wait(self, reason: str) -> None:
        if reason:
            self._pauses.pause("evaluators", reason)
        else:
            self._pauses.go_on("evaluators")

    def _evaluator_changed(self, notice: Notice) -> None:
        if self.state.finished is None:
            self._journal.write(
                EvaluatorChanged(evaluator=notice.evaluator, change=notice.change, reason=notice.reason)
            )
            # There may be room for more now.
            self._wake.set()

    # Evaluating.

    async def _evaluate(self, started: EvaluationStarted) -> None:
        request = self._steps.evaluation_request(started, self._pool.device)
        try:
            evaluation = await self._pool.evaluate(
                request,
                preferred=started.evaluator,
                on_progress=(lambda progress: self._progress(started.candidate_id, progress)),
            )
        except NotEvaluated as error:
            self._journal.write(
                EvaluationFailed(
                    request_id=started.request_id,
                    candidate_id=started.candidate_id,
                    reason=error.reason,
                    message=str(error),
                    device=started.device,
                )
            )
        else:
            self._steps.record(started, evaluation)
        self._wake.set()

    def _progress(self, candidate_id: str, progress: Progress) -> None:
        if self._on_progress is not None:
            self._on_progress(candidate_id, progress)
