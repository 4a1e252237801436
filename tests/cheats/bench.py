"""Judges cases with one warm executor, in the real sandbox."""

from __future__ import annotations

import ast
import hashlib
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from case import Case, Judged, Problem, judged

from kernelevo_api.types import BaselineKind, Candidate, Language, Limits, ProblemPolicy, TimingPolicy
from kernelevo_evaluator.executor import Job, ProblemRefused, ProblemSource
from kernelevo_evaluator.findings import look
from kernelevo_evaluator.local_executor import LocalExecutor
from kernelevo_evaluator.settings import ExecutorSettings
from kernelevo_sandbox import BubblewrapSandbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from kernelevo_api.types import Effort, ProblemReport


def _seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


LIMITS = Limits(
    build_time=_seconds(60),
    prepare_time=_seconds(40),
    check_time=_seconds(40),
    run_time=_seconds(60),
    profile_time=_seconds(60),
    memory_bytes=4 << 30,
    device_memory_bytes=8 << 30,
    processes=64,
    output_bytes=64 << 10,
    temporary_bytes=64 << 20,
)


class Bench:
    """The executor of one device, and what it said of sources that it has seen: many cases share a twin."""

    def __init__(self, executor: LocalExecutor) -> None:
        self.executor = executor
        self._reports: dict[str, ProblemReport] = {}
        self._known: dict[object, Judged] = {}

    async def cheat(self, case: Case) -> Judged:
        """What becomes of a case's cheat."""
        return await self._judge(case, case.cheat)

    async def twin(self, case: Case) -> Judged:
        """What becomes of its honest twin, by checks alone where nothing more is asked of it."""
        key = (case.twin, case.problem.source, repr(case.problem.policy), case.effort, case.audited)
        if key not in self._known:
            # A twin's limits are the usual ones, and what it is not is timed: an honest time needs no proof here.
            self._known[key] = await self._judge(replace(case, timed=False, limits={}), case.twin)
        return self._known[key]

    async def _judge(self, case: Case, source: str) -> Judged:
        if case.audited:
            return await self._audit(Problem(source=source, policy=case.problem.policy))
        job = await job_of(
            self,
            case.problem,
            source,
            language=case.language,
            effort=case.effort,
            limits=replace(LIMITS, **dict(case.limits)),
            skip_timing=not case.timed,
        )
        return judged(await self.executor.evaluate(job, _ignore), look(ast.parse(source)))

    async def report(self, problem: ProblemSource) -> ProblemReport:
        """The audit's report, made once."""
        if problem.digest not in self._reports:
            self._reports[problem.digest] = await self.executor.audit(problem, LIMITS, False, _ignore)
        return self._reports[problem.digest]

    async def _audit(self, problem: Problem) -> Judged:
        try:
            await self.executor.audit(_problem(problem), LIMITS, False, _ignore)
        except ProblemRefused as refused:
            codes = [f.code for f in refused.report.findings if f.refuses] if refused.report is not None else []
            return Judged(tuple(f"refused:{code}" for code in codes) or ("refused",), str(refused))
        return Judged(("accepted",), "")


async def job_of(
    bench: Bench,
    problem: Problem,
    source: str,
    *,
    language: Language,
    effort: Effort,
    limits: Limits,
    skip_timing: bool = False,
) -> Job:
    """What an executor is asked for one candidate."""
    asked = _problem(problem)
    return Job(
        evaluation_id="e",
        problem=asked,
        report=await bench.report(asked),
        candidate=Candidate(source=source),
        language=language,
        effort=effort,
        limits=limits,
        baseline=BaselineKind.EAGER,
        skip_timing=skip_timing,
    )


def _problem(problem: Problem) -> ProblemSource:
    plain: dict[str, Any] = {
        "dtype": "float32",
        "math": "ieee",
        "languages": tuple(Language),
        "timing": TimingPolicy.PIPELINED,
    }
    text = problem.source + repr(sorted(problem.policy.items()))
    return ProblemSource(
        source=problem.source,
        digest=hashlib.sha256(text.encode()).hexdigest(),
        name="case",
        policy=ProblemPolicy(**plain | dict(problem.policy)),
    )


def _ignore(*_: object) -> None:
    """Nobody watches the progress."""


@asynccontextmanager
async def bench(device: str, folder: Path) -> AsyncIterator[Bench]:
    """A bench for "cpu" or "gpu"; its processes are gone when it is left."""
    settings = ExecutorSettings(
        state_dir=folder,
        device="cuda" if device == "gpu" else "cpu",
        spare_runners=None if device == "gpu" else 2,
        default_limits=LIMITS,
        maximum_limits=LIMITS,
    )
    executor = LocalExecutor(BubblewrapSandbox(), settings)
    try:
        await executor.start()
        yield Bench(executor)
    finally:
        await executor.close()
