"""One lane: a device, the right to run on it alone, its referee, and the problems that are warm on it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from kernelevo_api.types import Effort, ProblemReport, Verdict
from kernelevo_evaluator.executor import ExecutorFault, ProblemRefused
from kernelevo_evaluator.lanes.referee_process import RefereeProcess, Services
from kernelevo_evaluator.lanes.runners import TOOL_START_SECONDS
from kernelevo_evaluator.messages.referee import AttachProblem, AuditProblem, DropProblem, EvaluateCandidate
from kernelevo_evaluator.referee.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from kernelevo_api.types import Limits
    from kernelevo_evaluator.executor import Job, ProblemSource, ProgressCallback
    from kernelevo_evaluator.lanes.cores import Cores
    from kernelevo_evaluator.lanes.gpu import Gpu
    from kernelevo_evaluator.lanes.loading import Loader
    from kernelevo_evaluator.lanes.quiet import Quiet
    from kernelevo_evaluator.lanes.runners import HeldRunner, RunnerLimits, RunnerPool
    from kernelevo_evaluator.settings import DeepChecks

_WARM_PROBLEMS = 2
_WATCHED_RUNS = 4
"""A profile, and a runner under each tool."""


class Lane:
    """Runs one job at a time; `exclusive` is the lock that says whose turn it is."""

    def __init__(
        self,
        pool: RunnerPool,
        quiet: Quiet,
        loader: Loader,
        *,
        cores: Cores,
        reference_limits: RunnerLimits,
        gpu: Gpu | None = None,
        deep_checks: DeepChecks = "final",
    ) -> None:
        """Pool, loader and silence are this lane's own: all that they start runs on its cores."""
        self.exclusive = asyncio.Lock()
        self.cores = cores
        self.gpu = gpu
        self.claims = 0
        """Jobs that run here, wait for their turn, or are being loaded."""
        self.pool = pool
        self.quiet = quiet
        self.loader = loader
        self._reference_limits = reference_limits
        self._deep_checks = deep_checks
        self._referee: RefereeProcess | None = None
        self._references: OrderedDict[str, HeldRunner] = OrderedDict()

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Count a job for as long as it concerns this lane."""
        self.claims += 1
        try:
            yield
        finally:
            self.claims -= 1

    async def referee(self) -> RefereeProcess:
        """The lane's referee; a new one where the last one failed."""
        if self._referee is None or not self._referee.alive:
            for digest in list(self._references):
                await self.pool.forget(self._references.pop(digest))
            if self._referee is not None:
                await self._referee.close()
            self._referee = await RefereeProcess.start(self.cores, self.gpu)
            if self.pool.watchdog is not None:
                self.pool.watchdog.lender = self._referee.pid
        return self._referee

    async def memory_unwatched(self) -> str:
        """Why nobody can look any more who holds the device's memory; empty: somebody can, or never could."""
        return await self.pool.watchdog.check() if self.pool.watchdog is not None else ""

    async def audit(self, problem: ProblemSource, limits: Limits, progress: ProgressCallback) -> ProblemReport:
        """Audit a problem and time its baselines. To be called with `exclusive` held.

        Raises:
            ProblemRefused: its reference fails.
            ExecutorFault: ours.
        """
        await self._attach(problem, limits, progress)
        referee = await self.referee()
        seconds = _seconds(limits, "check_time") + _seconds(limits, "prepare_time")
        services = self._services(problem, {}, progress)
        payload = await referee.job(
            AuditProblem(digest=problem.digest, name=problem.name, seconds=seconds), (), services, 4 * seconds + 60
        )
        try:
            # In this order: a report has nothing that it must hold, so that any outcome would pass for an empty one.
            failed = msgspec.msgpack.decode(payload, type=Outcome)
        except msgspec.ValidationError:
            return msgspec.msgpack.decode(payload, type=ProblemReport)
        await self._drop(problem.digest)
        raise ProblemRefused(failed.message, code=failed.code)

    async def evaluate(
        self,
        job: Job,
        runners: dict[str, HeldRunner],
        fresh: Callable[[str, str], Awaitable[HeldRunner]],
        progress: ProgressCallback,
        *,
        interpreter: bool,
    ) -> tuple[Outcome, Services]:
        """Check and time loaded candidates ("candidate", and "baseline" where that is not the reference).

        To be called with `exclusive` held. The runners' processes are the caller's to end.

        Raises:
            ExecutorFault: ours.
        """
        try:
            await self._attach(job.problem, job.limits, progress)
        except ProblemRefused as refused:
            raise ExecutorFault(f"the problem passed its audit, but its reference now fails: {refused}") from refused
        referee = await self.referee()
        services = self._services(job.problem, runners, progress, fresh)
        fds = [runners[name].fileno() for name in ("candidate", "baseline") if name in runners]
        for runner in runners.values():
            await self.quiet.remove(runner.process)
            await runner.process.thaw()
        payload = await referee.job(
            EvaluateCandidate(
                digest=job.problem.digest,
                report=msgspec.msgpack.encode(job.report),
                limits=msgspec.msgpack.encode(job.limits),
                effort=job.effort.value,
                baseline=job.baseline.value,
                interpreter=interpreter,
                skip_timing=job.skip_timing,
                bound_speedup=job.bound_speedup,
                language=job.language.value,
                profile=job.profile,
                deep=self._goes_deep(job),
            ),
            fds,
            services,
            longest_seconds(job.limits),
        )
        outcome = msgspec.msgpack.decode(payload, type=Outcome)
        if outcome.verdict is Verdict.PROBLEM_FAULT:
            await self._drop(job.problem.digest)
        return outcome, services

    def _services(
        self,
        problem: ProblemSource,
        runners: dict[str, HeldRunner],
        progress: ProgressCallback,
        fresh: Callable[[str, str], Awaitable[HeldRunner]] | None = None,
    ) -> Services:
        async def none(name: str, tool: str) -> HeldRunner:
            raise ExecutorFault(f"no fresh {name} can be had here")

        return Services(self.quiet, {"reference": self._references[problem.digest], **runners}, fresh or none, progress)

    async def _attach(self, problem: ProblemSource, limits: Limits, progress: ProgressCallback) -> None:
        """Make the problem warm on this lane, in place of the one that was not used for longest."""
        referee = await self.referee()
        held = self._references.get(problem.digest)
        if held is not None and not held.process.ended:
            self._references.move_to_end(problem.digest)
            return
        if held is not None:
            await self._drop(problem.digest)
        while len(self._references) >= _WARM_PROBLEMS:
            await self._drop(next(iter(self._references)))
        runner = await self.pool.take(self._reference_limits, label="reference")
        await self.quiet.remove(runner.process)
        self._references[problem.digest] = runner
        try:
            payload = await referee.job(
                AttachProblem(
                    digest=problem.digest,
                    source=problem.source,
                    policy=msgspec.msgpack.encode(problem.policy),
                    seconds=_seconds(limits, "prepare_time"),
                ),
                (runner.fileno(),),
                self._services(problem, {}, progress),
                _seconds(limits, "prepare_time") + 60,
            )
        except BaseException:
            self._references.pop(problem.digest, None)
            await self.pool.forget(runner)
            raise
        runner.handed_over()
        if payload:
            await self._drop(problem.digest)
            failed = msgspec.msgpack.decode(payload, type=Outcome)
            raise ProblemRefused(failed.message, code=failed.code)

    async def _drop(self, digest: str) -> None:
        runner = self._references.pop(digest, None)
        if runner is not None:
            await self.pool.forget(runner)
        if self._referee is not None and self._referee.alive:
            await self._referee.job(DropProblem(digest=digest), (), None, 30)

    def _goes_deep(self, job: Job) -> bool:
        """Whether a candidate that passes is called once more under each tool."""
        if self.gpu is None or self._deep_checks == "never":
            return False
        return job.profile or (job.effort is Effort.FINAL and self._deep_checks == "final")

    async def close(self) -> None:
        """End the referee and every runner."""
        for digest in list(self._references):
            await self.pool.forget(self._references.pop(digest))
        if self._referee is not None:
            await self._referee.close()
        await self.pool.close()


def longest_seconds(limits: Limits) -> float:
    """The longest that an evaluation may hold its lane, in seconds: a guard around the limits, which end each part before."""
    judged = 12 * sum(_seconds(limits, name) for name in ("prepare_time", "check_time", "run_time")) + 60
    # Runners may compile for as long as a build takes: the candidate's, the one that confirms it, the baseline's.
    compiled = 3 * _seconds(limits, "build_time")
    watched = _seconds(limits, "build_time") + _seconds(limits, "profile_time") + TOOL_START_SECONDS
    return judged + compiled + _WATCHED_RUNS * watched


def _seconds(limits: Limits, name: str) -> float:
    value = getattr(limits, name)
    assert value is not None, "limits are resolved before a job reaches a lane"
    return float(value.total_seconds())
