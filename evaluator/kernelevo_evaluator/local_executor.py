"""The executor of one host: builds beside lanes, one lane a device (here: the processor's cores)."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import platform
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from kernelevo_api.types import (
    ArithmeticRate,
    BaselineKind,
    CapturedText,
    CheckedOn,
    Device,
    DeviceKind,
    Effort,
    Environment,
    Evaluation,
    Guarantee,
    Language,
    LanguageSupport,
    SandboxInfo,
    Stage,
    StageTime,
    Timeline,
    Tool,
    Verdict,
)
from kernelevo_evaluator.executor import Executor, ExecutorFacts, ExecutorFault, ProblemRefused
from kernelevo_evaluator.lanes.lane import Lane
from kernelevo_evaluator.lanes.loading import Builds, Loader, LoadFailure
from kernelevo_evaluator.lanes.quiet import Quiet
from kernelevo_evaluator.lanes.runners import RunnerLimits, RunnerPool, usable_cpus
from kernelevo_evaluator.languages.cpp import CppBuilder
from kernelevo_sandbox import SandboxError

if TYPE_CHECKING:
    from kernelevo_api.types import Limits, ProblemReport
    from kernelevo_evaluator.executor import Job, ProblemSource, ProgressCallback
    from kernelevo_evaluator.lanes.runners import HeldRunner
    from kernelevo_evaluator.referee.outcome import Outcome
    from kernelevo_evaluator.settings import ExecutorSettings
    from kernelevo_sandbox import Captured, Ending, Sandbox

PROTOCOL_VERSION = 1
"""Of the referee's procedure: raised whenever an equal candidate could get another result."""


class LocalExecutor(Executor):
    """Carries evaluations out on this host."""

    def __init__(self, sandbox: Sandbox, settings: ExecutorSettings) -> None:
        self._sandbox = sandbox
        self._settings = settings
        self._quiet = Quiet()
        self._cpus = usable_cpus()
        defaults = settings.default_limits
        self._standard = _runner_limits(defaults)
        self._builder = CppBuilder(
            sandbox, self._quiet, Path(settings.state_dir) / "artefacts", settings.build_workers, self._cpus
        )
        self._loader = Loader(self._quiet, self._builder)
        self._pool = RunnerPool(
            sandbox, self._quiet, cpus=self._cpus, standard=self._standard, spares=settings.spare_runners
        )
        self._lanes: list[Lane] = []
        self._free: asyncio.Queue[Lane] = asyncio.Queue()
        self._facts: ExecutorFacts | None = None
        self._enforced_by = ""

    async def start(self) -> ExecutorFacts:
        guarantees = await self._sandbox.probe()
        await self._sandbox.sweep()
        self._pool.refill()
        lane = Lane(
            self._pool,
            self._quiet,
            cpus=self._cpus,
            reference_limits=self._standard,
        )
        self._lanes = [lane]
        facts = (await lane.referee()).facts
        self._free.put_nowait(lane)
        tools = [Tool(name="python", version=platform.python_version()), Tool(name="torch", version=facts.torch)]
        triton = _installed("triton")
        if triton:
            tools.append(Tool(name="triton", version=triton))
        compiler = await self._builder.version()
        if compiler:
            tools.append(Tool(name="g++", version=compiler))
        device = _cpu_device(self._cpus, facts.cache_bytes, facts.copy_gb_per_s, facts.float32_tflop_per_s)
        self._facts = ExecutorFacts(
            devices=(device,),
            languages=_languages(bool(compiler), bool(triton)),
            toolchain=tuple(tools),
            sandbox=SandboxInfo(
                backend=self._sandbox.name,
                guarantees=tuple(Guarantee(name=g.name, holds=g.holds, evidence=g.evidence) for g in guarantees),
            ),
            default_limits=self._settings.default_limits,
            maximum_limits=self._settings.maximum_limits,
            efforts=(Effort.SCREEN, Effort.FULL, Effort.FINAL),
            protocol_version=PROTOCOL_VERSION,
        )
        return self._facts

    async def close(self) -> None:
        await asyncio.gather(*(lane.close() for lane in self._lanes))
        await self._pool.close()
        await self._sandbox.close()

    @property
    def lanes(self) -> int:
        return len(self._lanes)

    @property
    def concurrency(self) -> int:
        return len(self._lanes) + self._settings.build_workers

    @property
    def healthy(self) -> bool:
        return bool(self._lanes)

    async def audit(
        self, problem: ProblemSource, limits: Limits, accept_refused: bool, progress: ProgressCallback
    ) -> ProblemReport:
        lane = await self._free.get()
        try:
            report = await lane.audit(problem, limits, progress)
        except SandboxError as error:
            raise ExecutorFault(str(error)) from error
        finally:
            self._free.put_nowait(lane)
        refusing = [finding for finding in report.findings if finding.refuses]
        if refusing and not accept_refused:
            reasons = "; ".join(finding.message for finding in refusing)
            raise ProblemRefused(f"the audit refuses this problem: {reasons}", report)
        return replace(report, accepted_with_mark=bool(refusing))

    async def evaluate(self, job: Job, progress: ProgressCallback) -> Evaluation:
        try:
            return await _Carrying(self, job, progress).carry_out()
        except SandboxError as error:
            raise ExecutorFault(str(error)) from error

    def environment(self, memory_enforced_by: str) -> Environment:
        """On what evaluations run here."""
        assert self._facts is not None
        return Environment(
            device=self._facts.devices[0],
            toolchain=self._facts.toolchain,
            sandbox_backend=self._sandbox.name,
            evaluator_version=_installed("kernelevo"),
            protocol_version=PROTOCOL_VERSION,
            host_kernel=platform.release(),
            memory_enforced_by=memory_enforced_by,
        )


class _Carrying:
    """One evaluation being carried out: its runners, and that none of them outlives it."""

    def __init__(self, executor: LocalExecutor, job: Job, progress: ProgressCallback) -> None:
        self._executor = executor
        self._job = job
        self._progress = progress
        self._builds = Builds()
        self._runners: list[HeldRunner] = []
        self._stages: list[StageTime] = []
        self._failed_again: LoadFailure | None = None
        self._endings: list[Ending] = []

    async def carry_out(self) -> Evaluation:
        executor, job = self._executor, self._job
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
                await executor._quiet.remove(runner.process, thaw=False)
                await runner.process.freeze()
            self._progress(Stage.QUEUE, "waiting for a lane")
            waiting = datetime.now(UTC)
            lane = await executor._free.get()
            try:
                self._stages.append(StageTime(stage=Stage.QUEUE, start=waiting, end=datetime.now(UTC)))
                outcome, services = await lane.evaluate(
                    job,
                    runners,
                    self._fresh,
                    self._progress,
                    interpreter=_interpreted(job.language),
                )
                self._endings += services.endings.values()
            except ExecutorFault:
                if self._failed_again is None:
                    raise
                return self._failed(self._failed_again)
            finally:
                await self._end_runners()
                executor._free.put_nowait(lane)
            return self._evaluation(outcome)
        finally:
            await self._end_runners()

    async def _take(self, label: str) -> HeldRunner:
        limits = _runner_limits(self._job.limits)
        runner = await self._executor._pool.take(limits, label)
        self._runners.append(runner)
        return runner

    async def _load(self, name: str) -> HeldRunner | LoadFailure:
        job = self._job
        candidate = job.candidate if name == "candidate" else job.baseline_candidate
        language = job.language if name == "candidate" else job.baseline_language
        assert candidate is not None
        assert language is not None
        assert job.limits.build_time is not None
        assert job.limits.memory_bytes is not None
        runner = await self._take(name)
        failure = await self._executor._loader.load(
            runner,
            candidate.source,
            interpreter=_interpreted(language),
            seconds=job.limits.build_time.total_seconds(),
            memory_bytes=job.limits.memory_bytes,
            builds=self._builds if name == "candidate" else Builds(),
        )
        return failure or runner

    async def _fresh(self, name: str) -> HeldRunner:
        loaded = await self._load(name)
        if isinstance(loaded, LoadFailure):
            # Its own doing: the evaluation ends with this, and so does the referee that waits for the runner.
            self._failed_again = replace(loaded, message=f"it loaded once, and not again: {loaded.message}")
            raise ExecutorFault(self._failed_again.message)
        await self._executor._quiet.remove(loaded.process)
        return loaded

    async def _end_runners(self) -> None:
        runners, self._runners = self._runners, []
        self._endings += await asyncio.gather(*(self._executor._pool.discard(runner) for runner in runners))

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
        )

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
            environment=self._executor.environment(output.memory_enforced_by.value if output else ""),
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


def _runner_limits(limits: Limits) -> RunnerLimits:
    assert limits.memory_bytes is not None
    assert limits.processes is not None
    assert limits.output_bytes is not None
    assert limits.temporary_bytes is not None
    return RunnerLimits(limits.memory_bytes, limits.processes, limits.output_bytes, limits.temporary_bytes)


def _interpreted(language: Language) -> bool:
    return language is Language.TRITON


def _languages(compiler: bool, triton: bool) -> tuple[LanguageSupport, ...]:
    supports = [
        LanguageSupport(
            language=Language.TORCH,
            device_kind=DeviceKind.CPU,
            checked_on=CheckedOn.DEVICE,
            notes="Plain torch operators.",
        )
    ]
    if compiler:
        supports.append(
            LanguageSupport(
                language=Language.CPP_INLINE,
                device_kind=DeviceKind.CPU,
                checked_on=CheckedOn.DEVICE,
                notes=(
                    'torch\'s load_inline. extern "C" functions with is_python_module=False and no_implicit_headers=True, '
                    "called through ctypes, build in a third of a second; torch's headers take half a minute."
                ),
            )
        )
    if triton:
        supports.append(
            LanguageSupport(
                language=Language.TRITON,
                device_kind=DeviceKind.CPU,
                checked_on=CheckedOn.INTERPRETER,
                notes="Under TRITON_INTERPRET=1: checked, not timed, never final.",
            )
        )
    return tuple(supports)


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _cpu_device(cpus: frozenset[int], cache_bytes: int, copy_gb_per_s: float, float32_tflop_per_s: float) -> Device:
    name, flags = platform.processor() or platform.machine(), ""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                name = value.strip()
            elif key.strip() in ("flags", "Features"):
                wanted = ("avx2", "fma", "avx512f", "avx512bw", "amx_tile", "asimd", "sve")
                flags = " ".join(flag for flag in wanted if flag in value.split())
                break
    return Device(
        id="cpu",
        kind=DeviceKind.CPU,
        name=name,
        architecture=f"{platform.machine()} {flags}".strip(),
        multiprocessors=len(cpus),
        l2_bytes=cache_bytes,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        measured_bandwidth_gb_per_s=copy_gb_per_s,
        measured_rates=(ArithmeticRate(dtype="float32", tflop_per_s=float32_tflop_per_s),),
        healthy=True,
        cpus=tuple(sorted(cpus)),
    )
