"""Carries a suite out: a run for each problem, as many at a time as the evaluators have lanes for.

A run works on one evaluator, so that its problem is audited once and all its speedups are of one host. Where that evaluator is
lost for longer than a while, the run is drained and goes on at another one. Nothing is held here that a resumed suite would miss.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter, deque
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kernelevo_api.errors import CallRefused
from kernelevo_api.pool import NoEvaluator, NotEvaluated
from kernelevo_api.types import Candidate, Effort, EvaluateRequest, Verdict
from kernelevo_searcher import runs
from kernelevo_searcher.best import write_best
from kernelevo_searcher.catalogue import Entry
from kernelevo_searcher.checking import TRIES, State, Work, answers, check_one
from kernelevo_searcher.drain import Drain
from kernelevo_searcher.events import Paused, Resumed
from kernelevo_searcher.inputs import BadInput
from kernelevo_searcher.store import RUN_FILE, RunStore, StoreError
from kernelevo_searcher.suite.results import Ending, problem_result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kernelevo_api.pool import Endpoint, EvaluatorPool
    from kernelevo_searcher.events import Record
    from kernelevo_searcher.settings import SearcherSettings
    from kernelevo_searcher.state import RunState
    from kernelevo_searcher.suite.folder import Suite, SuiteProblem

__all__ = ["Listener", "carry_out"]

_PATIENCE_S = 60.0
"""How long a run waits for its evaluator while another one could take it."""
_LOOK_S = 2.0
"""Between two looks for an evaluator while none is free."""


class Listener:
    """Told what happens; does nothing with it."""

    def begins(self, problem: SuiteProblem, evaluator: str) -> None:
        """A run begins, or goes on."""

    def ends(self, problem: SuiteProblem) -> None:
        """A problem has come to its end."""

    def cannot(self, problem: SuiteProblem, why: str) -> None:
        """It was given up for this time, through no fault of its own."""


@dataclass(slots=True)
class _Task:
    problem: SuiteProblem
    tries: int = 0


async def carry_out(
    suite: Suite,
    pool: EvaluatorPool,
    settings: SearcherSettings,
    *,
    jobs: int | None = None,
    drain: Drain | None = None,
    listener: Listener | None = None,
) -> None:
    """Search all problems that have not come to an end, by a connected pool; returns early where `drain` asks for it.

    Args:
        suite: on the device of the pool; locked.
        settings: how to reach models; what is searched for stands in the suite.
        jobs: runs at once at most; absent: one for each lane, two with a model, whose answers take longer than measurements.

    Raises:
        StoreError, BadInput: a run cannot be used.
        EvaluatorError: the evaluators will not serve us.
    """
    await _Runner(suite, pool, settings, jobs, drain or Drain(), listener or Listener()).run()


class _Runner:
    def __init__(
        self,
        suite: Suite,
        pool: EvaluatorPool,
        settings: SearcherSettings,
        jobs: int | None,
        drain: Drain,
        listener: Listener,
    ) -> None:
        self._suite = suite
        self._pool = pool
        self._settings = settings
        self._jobs = jobs
        self._drain = drain
        self._listener = listener
        self._wake = asyncio.Event()
        self._at: Counter[str] = Counter()
        outcomes = suite.outcomes()
        self._compared = outcomes.compared
        self._waiting = deque(
            _Task(problem)
            for problem in suite.problems
            if problem.folder not in outcomes.not_taken and not self._is_over(problem)
        )
        pool.on_notice = lambda _notice: self._wake.set()

    def _is_over(self, problem: SuiteProblem) -> bool:
        result = problem_result(self._suite, problem, self._compared.get(problem.folder))
        if result.ending is Ending.OPEN:
            return False
        return result.best_id is None or not self._suite.other_baseline or problem.folder in self._compared

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(self._pool.watch())
                with self._drain.telling(self._wake.set):
                    while (self._waiting and not self._drain.asked) or self._at.total():
                        self._wake.clear()
                        place = self._place() if self._waiting and not self._drain.asked else None
                        if place is not None:
                            self._at[place.name] += 1
                            tasks.create_task(self._work(self._waiting.popleft(), place))
                        else:
                            await self._rest()
                watching.cancel()
        except BaseExceptionGroup as group:
            # Whatever fails, fails for one reason; the first task that met it has the message.
            raise group.exceptions[0] from group

    # Where.

    def _most(self, endpoint: Endpoint) -> int:
        """Runs that this evaluator has room for."""
        return max(1, endpoint.share(self._pool.device)) * (2 if self._suite.settings.models else 1)

    def _place(self) -> Endpoint | None:
        if self._jobs is not None and self._at.total() >= self._jobs:
            return None
        now = asyncio.get_running_loop().time()
        free = [one for one in self._pool.endpoints if one.answers(now) and self._at[one.name] < self._most(one)]
        return min(free, key=lambda one: self._at[one.name] / self._most(one), default=None)

    def _lanes(self, endpoint: Endpoint) -> int:
        """Of this evaluator for one run, so that those that run at once share it."""
        at_once = self._most(endpoint)
        if self._jobs is not None:
            at_once = min(at_once, max(1, self._jobs // max(1, len(self._pool.endpoints))))
        return max(1, endpoint.share(self._pool.device) // at_once)

    async def _rest(self) -> None:
        """Until something changes; an evaluator of our own that ended is started again meanwhile."""
        try:
            async with asyncio.timeout(_LOOK_S):
                await self._wake.wait()
        except TimeoutError:
            if not self._at.total():
                self._pool.revive()

    # One problem.

    async def _work(self, task: _Task, place: Endpoint) -> None:
        problem = task.problem
        self._listener.begins(problem, place.name)
        try:
            if await self._one(task, place):
                place.did_well()
                self._listener.ends(problem)
            elif not self._drain.asked:
                self._waiting.append(task)
        except (NoEvaluator, NotEvaluated, CallRefused) as error:
            # An evaluator that is gone is nobody's fault; one that answers, and yet cannot, failed at this problem.
            there = await answers(place)
            task.tries += there
            if not there:
                place.rest(asyncio.get_running_loop().time(), self._pool.settings)
            if task.tries < TRIES:
                self._waiting.append(task)
            else:
                self._listener.cannot(problem, str(error))
        except (StoreError, BadInput) as error:
            self._listener.cannot(problem, str(error))
        finally:
            self._at[place.name] -= 1
            self._wake.set()

    async def _one(self, task: _Task, place: Endpoint) -> bool:
        """Whether it has come to its end."""
        suite, problem = self._suite, task.problem
        run_dir, source = suite.run_dir(problem), suite.read(problem)
        drain = Drain()
        with self._drain.telling(drain.ask):
            async with drain.preparing():
                work = Work(Entry(problem.name, source=source.source), source, tries=task.tries)
                accept = suite.settings.accept_refused_problem
                found = await check_one(work, place, accept_refused=accept)
                if found is None:
                    raise NoEvaluator("; ".join(work.troubles))
                if found.state is not State.TAKEN:
                    suite.add_not_taken(problem, found)
                    return True
            if drain.asked:
                return False
            if not (run_dir / RUN_FILE).exists():
                runs.make(
                    source, suite.starts(problem), replace(suite.settings, device=self._pool.device), run_dir=run_dir
                )
            pool = self._pool.alone(place, self._lanes(place))
            with self._leaving(place, drain) as observe:
                state = await runs.resume(run_dir, self._settings, {}, pool=pool, drain=drain, observe=observe)
        if state.finished is None:
            return False
        from kernelevo_searcher.report import write_report

        write_best(run_dir)
        await asyncio.to_thread(write_report, run_dir)
        return await self._compare(problem, state, place)

    @contextmanager
    def _leaving(self, place: Endpoint, drain: Drain) -> Iterator[Callable[[Record, RunState], None]]:
        """Drains a run that waits for its evaluator while another one could take it."""
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle | None = None

        def look() -> None:
            nonlocal timer
            now = loop.time()
            if any(one is not place and one.answers(now) for one in self._pool.endpoints):
                drain.ask()
            else:
                timer = loop.call_later(_PATIENCE_S, look)

        def observe(record: Record, _state: RunState) -> None:
            nonlocal timer
            match record.event:
                case Paused(model=None):
                    timer = timer or loop.call_later(_PATIENCE_S, look)
                case Resumed(model=None) if timer is not None:
                    timer.cancel()
                    timer = None

        try:
            yield observe
        finally:
            if timer is not None:
                timer.cancel()

    async def _compare(self, problem: SuiteProblem, state: RunState, place: Endpoint) -> bool:
        """Measure the best kernel over the other baseline too."""
        suite = self._suite
        assert state.finished is not None and state.started is not None
        best_id = state.finished.best_id
        if best_id is None or not suite.other_baseline:
            return True
        other = suite.baselines[1]
        pool = self._pool.alone(place, 1)
        await pool.connect(device=self._pool.device)
        await pool.register(suite.read(problem), accept_refused=suite.settings.accept_refused_problem)
        request = EvaluateRequest(
            request_id=str(uuid.uuid5(uuid.NAMESPACE_OID, f"{state.started.run_id}/{best_id}/{other.value}")),
            problem_digest=problem.digest,
            candidate=Candidate(source=self._source(problem, state, best_id)),
            effort=Effort.FULL,
            baseline=other,
            client_id=f"kernelevo-{state.started.run_id[:8]}",
            accept_refused_problem=suite.settings.accept_refused_problem,
        )
        evaluation = await pool.evaluate(request, patience_s=_PATIENCE_S)
        # A baseline that torch.compile cannot make is a lasting answer.
        if evaluation.verdict in (Verdict.EVALUATOR_FAULT, Verdict.CANCELLED):
            raise NotEvaluated(evaluation.verdict.value, evaluation.message)
        suite.add_compared(problem, best_id, evaluation)
        return True

    def _source(self, problem: SuiteProblem, state: RunState, candidate_id: str) -> str:
        with RunStore.open(self._suite.run_dir(problem), read_only=True) as store:
            return store.text(state.candidates[candidate_id].proposed.source_digest)
