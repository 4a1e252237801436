"""An executor that does what a candidate's first line says, and counts the work. No sandbox, no torch.

A candidate whose source begins with `# script: verdict` gets that verdict. Words after it: `hold` waits until `release` is called
(or the file named by SCRIPTED_RELEASE exists), `fault` and `fault-once` raise `ExecutorFault`, `boom` raises something else.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from kernelevo_api.types import (
    CheckedOn,
    Device,
    DeviceKind,
    Effort,
    Evaluation,
    Finding,
    Guarantee,
    Language,
    LanguageSupport,
    Limits,
    ProblemReport,
    SandboxInfo,
    Seed,
    Stage,
    StageTime,
    TensorInfo,
    Timeline,
    Tool,
    Verdict,
)
from kernelevo_evaluator.executor import (
    Executor,
    ExecutorFacts,
    ExecutorFault,
    Job,
    LaneState,
    ProblemRefused,
    ProblemSource,
    ProgressCallback,
)
from kernelevo_evaluator.sources import digest_of

PROBLEM = """\
import torch
from torch import nn

size = 8


class Model(nn.Module):
    def forward(self, x):
        return x + 1


def get_inputs():
    return [torch.rand(size)]


def get_init_inputs():
    return []
"""
REFUSED = PROBLEM + "\n# refuse\n"


def candidate(script: str = "passed", extra: str = "") -> str:
    return f"# script: {script}\nclass ModelNew:\n    pass\n{extra}"


@dataclass
class ScriptedExecutor(Executor):
    slots: int = 1
    toolchain_version: str = "1"
    started: list[str] = field(default_factory=list)
    """Scripts of the evaluations that began, in order."""
    ended: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    audits: list[str] = field(default_factory=list)
    seeded: list[str] = field(default_factory=list)
    makes_seeds: bool = True
    jobs: list[Job] = field(default_factory=list)
    closed: bool = False
    well: bool = True
    audit_hold: bool = False

    def __post_init__(self) -> None:
        self.gate = asyncio.Event()
        self.changed = asyncio.Condition()

    def release(self) -> None:
        self.gate.set()

    async def until(self, what: str, count: int) -> None:
        """Wait until the list of this name has `count` entries."""
        async with asyncio.timeout(50), self.changed:
            await self.changed.wait_for(lambda: len(getattr(self, what)) >= count)

    async def _note(self, what: str, entry: str) -> None:
        async with self.changed:
            getattr(self, what).append(entry)
            self.changed.notify_all()

    async def start(self) -> ExecutorFacts:
        limits = Limits(
            build_time=timedelta(seconds=60),
            prepare_time=timedelta(seconds=60),
            check_time=timedelta(seconds=60),
            run_time=timedelta(seconds=120),
            profile_time=timedelta(seconds=60),
            memory_bytes=1 << 30,
            device_memory_bytes=1 << 30,
            processes=64,
            output_bytes=1 << 20,
            temporary_bytes=1 << 26,
        )
        maximum = Limits(
            build_time=timedelta(seconds=600),
            prepare_time=timedelta(seconds=600),
            check_time=timedelta(seconds=600),
            run_time=timedelta(seconds=1200),
            profile_time=timedelta(seconds=600),
            memory_bytes=1 << 32,
            device_memory_bytes=1 << 32,
            processes=256,
            output_bytes=1 << 22,
            temporary_bytes=1 << 28,
        )
        return ExecutorFacts(
            devices=(
                Device(
                    id="cpu", kind=DeviceKind.CPU, name="scripted", architecture="none", healthy=True, memory_bytes=1
                ),
            ),
            languages=(
                LanguageSupport(language=Language.TORCH, device_kind=DeviceKind.CPU, checked_on=CheckedOn.DEVICE),
                LanguageSupport(language=Language.CPP_INLINE, device_kind=DeviceKind.CPU, checked_on=CheckedOn.DEVICE),
            ),
            toolchain=(Tool(name="script", version=self.toolchain_version),),
            sandbox=SandboxInfo(backend="none", guarantees=(Guarantee(name="none", holds=False, evidence="scripted"),)),
            default_limits=limits,
            maximum_limits=maximum,
            efforts=(Effort.SCREEN, Effort.FULL),
            protocol_version=1,
        )

    async def close(self) -> None:
        self.closed = True

    @property
    def lanes(self) -> int:
        return self.slots

    @property
    def concurrency(self) -> int:
        return self.slots

    @property
    def healthy(self) -> bool:
        return self.well

    @property
    def lane_states(self) -> dict[str, LaneState]:
        return {"cpu": LaneState.RUNNING if len(self.started) > len(self.ended) else LaneState.IDLE}

    @property
    def warm_runners(self) -> dict[str, int]:
        return {"cpu": 2}

    @property
    def device_faults(self) -> dict[str, str]:
        return {} if self.well else {"cpu": "the device is gone"}

    async def audit(
        self, problem: ProblemSource, limits: Limits, accept_refused: bool, progress: ProgressCallback
    ) -> ProblemReport:
        await self._note("audits", problem.digest)
        progress(Stage.AUDIT, "auditing")
        if self.audit_hold:
            try:
                await self._wait()
            except asyncio.CancelledError:
                await self._note("cancelled", "audit")
                raise
        findings: tuple[Finding, ...] = ()
        if "# refuse" in problem.source:
            code = "too_large" if "too_large" in problem.source else "constant_output"
            findings = (Finding(code=code, message="does not depend on its input", refuses=True),)
            if not accept_refused:
                raise ProblemRefused("the audit refuses it", ProblemReport(findings=findings))
        progress(Stage.BASELINE, "timing eager")
        return ProblemReport(
            findings=findings,
            accepted_with_mark=bool(findings),
            inputs=(TensorInfo(name="0", shape=(8,), dtype="float32", bytes=32),),
        )

    async def seeds(
        self, problem: ProblemSource, limits: Limits, progress: ProgressCallback
    ) -> tuple[tuple[Seed, ...], tuple[Finding, ...]]:
        if not self.makes_seeds:
            return await super().seeds(problem, limits, progress)
        await self._note("seeded", problem.digest)
        return (Seed(name="scripted", source=candidate(), language=Language.TORCH),), ()

    async def evaluate(self, job: Job, progress: ProgressCallback) -> Evaluation:
        script = job.candidate.source.partition("\n")[0].removeprefix("# script:").strip()
        self.jobs.append(job)
        await self._note("started", script)
        try:
            return await self._follow(script, job, progress)
        except asyncio.CancelledError:
            await self._note("cancelled", script)
            raise

    async def _follow(self, script: str, job: Job, progress: ProgressCallback) -> Evaluation:
        words = script.split()
        stages = []
        for stage in (Stage.BUILD, Stage.CHECK, Stage.TIME):
            began = datetime.now(UTC)
            progress(stage, f"{stage.value} of {script}")
            stages.append(StageTime(stage=stage, start=began, end=datetime.now(UTC)))
        if "hold" in words:
            await self._wait()
        if "boom" in words:
            raise RuntimeError("boom")
        if "fault" in words or ("fault-once" in words and self.started.count(script) == 1):
            raise ExecutorFault("the device is gone")
        await self._note("ended", script)
        return Evaluation(
            evaluation_id=job.evaluation_id,
            problem_digest=job.problem.digest,
            candidate_digest=digest_of(job.candidate.source),
            verdict=Verdict(words[0]),
            stage=Stage.TIME,
            language=job.language,
            effort=job.effort,
            baseline=job.baseline,
            timeline=Timeline(stages=tuple(stages)),
        )

    async def _wait(self) -> None:
        path = os.environ.get("SCRIPTED_RELEASE")
        if path is None:
            await self.gate.wait()
            return
        while not Path(path).exists():
            await asyncio.sleep(0.02)
