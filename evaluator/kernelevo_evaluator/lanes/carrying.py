"""One evaluation carried out on a lane: load, wait for the turn, hand over to the referee, clean up."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kernelevo_api.types import (
    BaselineKind,
    Build,
    CapturedText,
    Evaluation,
    Language,
    Stage,
    StageTime,
    Timeline,
    Verdict,
)
from kernelevo_evaluator.executor import ExecutorFault
from kernelevo_evaluator.lanes.loading import Builds, LoadFailure
from kernelevo_evaluator.lanes.runners import RunnerLimits
from kernelevo_evaluator.lanes.tools import ToolMissing, find_tool

if TYPE_CHECKING:
    from kernelevo_api.types import Environment, Limits
    from kernelevo_evaluator.executor import Job, ProgressCallback
    from kernelevo_evaluator.lanes.lane import Lane
    from kernelevo_evaluator.lanes.runners import HeldRunner
    from kernelevo_evaluator.lanes.tools import Tool
    from kernelevo_evaluator.referee.outcome import Outcome
    from kernelevo_sandbox import Captured, Ending


class Carrying:
    """One evaluation being carried out: its runners, and that none of them outlives it."""

    def __init__(self, lane: Lane, job: Job, environment: Environment, progress: ProgressCallback) -> None:
        """`environment`: on what it runs, but for who held the memory limit."""
        self._lane = lane
        self._environment = environment
        self._job = job
        self._progress = progress
        self._builds = Builds()
        self._runners: list[HeldRunner] = []
        self._stages: list[StageTime] = []
        self._failed_again: LoadFailure | None = None
        self._endings: list[Ending] = []

    async def carry_out(self) -> Evaluation:
        """Every failure of the candidate is a verdict; when this returns, or is cancelled, its processes are gone.

        Raises:
            ExecutorFault: ours.
        """
        lane, job = self._lane, self._job
        try:
            started = datetime.now(UTC)
            self._progress(Stage.BUILD, "building and importing the candidate")
            loaded = await self._load("candidate")
            self._stages.append(StageTime(stage=Stage.BUILD, start=started, end=datetime.now(UTC)))
            if isinstance(loaded, LoadFailure):
                return self._failed(loaded)
            runners = {"candidate": loaded}
            if job.baseline is BaselineKind.CANDIDATE:
                baseline = await self._load("baseline")
                if isinstance(baseline, LoadFailure):
                    message = f"the candidate that serves as the baseline did not load: {baseline.message}"
                    return self._failed(replace(baseline, verdict=Verdict.PROBLEM_FAULT, message=message))
                runners["baseline"] = baseline
            elif job.baseline is BaselineKind.TORCH_COMPILE:
                runners["baseline"] = await self._take("baseline")
            # A loaded candidate waits for its lane without running, whatever the silence of others begins or ends.
            for runner in runners.values():
                await lane.quiet.remove(runner.process, thaw=False)
                await runner.process.freeze()
            self._progress(Stage.QUEUE, "waiting for a lane")
            waiting = datetime.now(UTC)
            await lane.exclusive.acquire()
            try:
                self._stages.append(StageTime(stage=Stage.QUEUE, start=waiting, end=datetime.now(UTC)))
                outcome, services = await lane.evaluate(
                    job,
                    runners,
                    self._fresh,
                    self._progress,
                    interpreter=self._interpreted(job.language),
                )
                self._endings += services.endings.values()
            except ExecutorFault:
                if self._failed_again is None:
                    raise
                return self._failed(self._failed_again)
            finally:
                await self._end_runners()
                lane.exclusive.release()
            return self._evaluation(outcome)
        finally:
            await self._end_runners()

    def _interpreted(self, language: Language) -> bool:
        """Triton on a lane without a GPU runs under its interpreter."""
        return language is Language.TRITON and self._lane.gpu is None

    async def _take(self, label: str, tool: Tool | None = None) -> HeldRunner:
        # What torch compiles for the reference is not a candidate's, and takes what it takes.
        reference = label == "baseline" and self._job.baseline is BaselineKind.TORCH_COMPILE
        limits = runner_limits(self._job.limits, None if reference else self._lane.pool.cpu_seconds)
        runner = await self._lane.pool.take(limits, label, tool)
        self._runners.append(runner)
        return runner

    async def _load(self, name: str, tool: Tool | None = None) -> HeldRunner | LoadFailure:
        job = self._job
        candidate = job.candidate if name == "candidate" else job.baseline_candidate
        language = job.language if name == "candidate" else job.baseline_language
        assert candidate is not None
        assert language is not None
        assert job.limits.build_time is not None
        assert job.limits.memory_bytes is not None
        runner = await self._take(name, tool)
        failure = await self._lane.loader.load(
            runner,
            candidate.source,
            interpreter=self._interpreted(language),
            math=job.problem.policy.math,
            seconds=job.limits.build_time.total_seconds(),
            memory_bytes=job.limits.memory_bytes,
            builds=self._builds if name == "candidate" and tool is None else Builds(),
        )
        return failure or runner

    async def _fresh(self, name: str, tool_name: str = "") -> HeldRunner:
        """Another runner; under a tool whatever fails is told to who asked, and no fault of the evaluation."""
        tool: Tool | None = None
        if tool_name:
            try:
                tool = find_tool(tool_name)
            except ToolMissing as error:
                raise ExecutorFault(str(error)) from error
        loaded = await self._load(name, tool)
        if isinstance(loaded, LoadFailure):
            if tool is not None:
                raise ExecutorFault(f"the candidate did not load under {tool_name}: {loaded.message}")
            # Its own doing: the evaluation ends with this, and so does the referee that waits for the runner.
            self._failed_again = replace(loaded, message=f"it loaded once, and not again: {loaded.message}")
            raise ExecutorFault(self._failed_again.message)
        await self._lane.quiet.remove(loaded.process)
        return loaded

    async def _end_runners(self) -> None:
        runners, self._runners = self._runners, []
        # Shielded: whoever cancels a second time must not lose a runner that is being ended.
        discarding = asyncio.gather(*(self._lane.pool.discard(runner) for runner in runners), return_exceptions=True)
        for end in await asyncio.shield(discarding):
            if isinstance(end, BaseException):
                raise end  # all of them are gone by now
            self._endings.append(end)

    def _failed(self, failure: LoadFailure) -> Evaluation:
        if failure.end is not None:
            self._endings.append(failure.end)
        return replace(
            self._base(failure.verdict, failure.stage, failure.message),
            limit=failure.limit,
            error=failure.error,
            sandbox_ending=failure.ending,
        )

    def _evaluation(self, outcome: Outcome) -> Evaluation:
        self._stages += outcome.stages
        return replace(
            self._base(outcome.verdict, outcome.stage, outcome.message),
            limit=outcome.limit,
            error=outcome.error,
            sandbox_ending=outcome.sandbox_ending,
            correctness=outcome.correctness,
            timing=outcome.timing,
            checked_on=outcome.checked_on,
            findings=outcome.findings,
            profile=outcome.profile,
            deep_checks=outcome.deep_checks,
            build=self._build(outcome),
        )

    def _build(self, outcome: Outcome) -> Build | None:
        """What was built before the lane's turn, and what Triton compiled during it."""
        build = self._builds.as_build()
        if not outcome.compiled:
            return build
        return replace(build or Build(), artefacts=(*(build.artefacts if build is not None else ()), *outcome.compiled))

    def _base(self, verdict: Verdict, stage: Stage, message: str) -> Evaluation:
        job = self._job
        output = self._endings[0] if self._endings else None
        return Evaluation(
            evaluation_id=job.evaluation_id,
            problem_digest=job.problem.digest,
            candidate_digest=hashlib.sha256(job.candidate.source.encode()).hexdigest(),
            verdict=verdict,
            stage=stage,
            message=message,
            language=job.language,
            effort=job.effort,
            build=self._builds.as_build(),
            environment=replace(
                self._environment, memory_enforced_by=output.memory_enforced_by.value if output else ""
            ),
            timeline=Timeline(stages=tuple(self._stages)),
            output=_output(output) if output else None,
            baseline=job.baseline,
            problem_accepted_with_mark=job.report.accepted_with_mark,
        )


def _output(ending: Ending) -> CapturedText:
    """What a candidate printed: stdout, then stderr."""
    streams: list[Captured] = [ending.stdout, ending.stderr]
    text = "".join(stream.text() for stream in streams if stream.total_bytes)
    total = sum(stream.total_bytes for stream in streams)
    if len(text) <= 16384:
        return CapturedText(head=text, total_bytes=total)
    return CapturedText(head=text[:8192], tail=text[-8192:], total_bytes=total)


def runner_limits(limits: Limits, cpu_seconds: float | None = None) -> RunnerLimits:
    """What a candidate's runner may use under a job's limits, which are resolved, and under the host's of processor time."""
    assert limits.memory_bytes is not None
    assert limits.processes is not None
    assert limits.output_bytes is not None
    assert limits.temporary_bytes is not None
    return RunnerLimits(
        limits.memory_bytes,
        limits.processes,
        limits.output_bytes,
        limits.temporary_bytes,
        limits.device_memory_bytes,
        cpu_seconds,
    )
