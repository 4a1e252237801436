"""An executor without a device: it waits as long as an evaluation would take and makes its verdicts up.

For sizing a fleet and for trying one out: everything around it is the real service. It runs no candidate, needs neither sandbox
nor torch, and says "simulated" wherever a result names its device. A candidate's source decides: one that holds the word `BROKEN`
is an output mismatch, every other passes with the speedup that a line `SIMULATED_SPEEDUP = 1.5` of it says, or one drawn from its
digest.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import platform
import random
import re
from typing import TYPE_CHECKING

from kernelevo_api.types import (
    Baseline,
    BaselineKind,
    CheckedOn,
    Device,
    DeviceKind,
    Effort,
    Environment,
    Evaluation,
    Guarantee,
    Language,
    LanguageSupport,
    ProblemReport,
    Ratio,
    SandboxInfo,
    Stage,
    Timing,
    Tool,
    Trust,
    Verdict,
)
from kernelevo_evaluator.executor import Executor, ExecutorFacts
from kernelevo_evaluator.sources import digest_of

if TYPE_CHECKING:
    from kernelevo_api.types import Limits
    from kernelevo_evaluator.executor import Job, ProblemSource, ProgressCallback
    from kernelevo_evaluator.settings import ExecutorSettings

NAME = "simulated"
_BASELINE_US = 100.0
_FLOOR_US = 25.0
_SPREAD = 0.25
"""Standard deviation of the logarithm of the speedups."""
_SAID = re.compile(r"^SIMULATED_SPEEDUP = (\d{1,4}(?:\.\d{1,9})?)$", re.MULTILINE)
_NOISE = {Effort.SCREEN: 0.02, Effort.FULL: 0.008, Effort.FINAL: 0.004}


class SimulatedExecutor(Executor):
    """Lanes that wait."""

    def __init__(self, settings: ExecutorSettings) -> None:
        self._settings = settings
        self._devices = tuple(
            Device(
                id=f"{NAME}{number}",
                kind=DeviceKind.CPU,
                name=settings.simulated_name,
                architecture=NAME,
                memory_bytes=1 << 30,
                healthy=True,
            )
            for number in range(settings.simulated_lanes)
        )
        self._free: asyncio.Queue[Device] = asyncio.Queue()
        for device in self._devices:
            self._free.put_nowait(device)

    async def start(self) -> ExecutorFacts:
        """Nothing to claim."""
        return ExecutorFacts(
            devices=self._devices,
            languages=tuple(
                LanguageSupport(language=language, device_kind=DeviceKind.CPU, checked_on=CheckedOn.DEVICE)
                for language in Language
            ),
            toolchain=(Tool(name=NAME, version="1"),),
            sandbox=SandboxInfo(
                backend="none", guarantees=(Guarantee(name="runs_candidates", holds=False, evidence="it runs nothing"),)
            ),
            default_limits=self._settings.default_limits,
            maximum_limits=self._settings.maximum_limits,
            efforts=(Effort.SCREEN, Effort.FULL, Effort.FINAL),
            protocol_version=0,
        )

    async def close(self) -> None:
        """Nothing to release."""

    @property
    def lanes(self) -> int:
        return self._settings.simulated_lanes

    @property
    def concurrency(self) -> int:
        return self.lanes

    @property
    def healthy(self) -> bool:
        return True

    async def audit(
        self, problem: ProblemSource, limits: Limits, accept_refused: bool, progress: ProgressCallback
    ) -> ProblemReport:
        progress(Stage.AUDIT, "simulated")
        return ProblemReport(
            baselines=(
                Baseline(kind=BaselineKind.EAGER, median_us=_BASELINE_US, low_us=_BASELINE_US, high_us=_BASELINE_US),
            )
        )

    async def evaluate(self, job: Job, progress: ProgressCallback) -> Evaluation:
        device = await self._free.get()
        try:
            progress(Stage.TIME, "simulated")
            await asyncio.sleep(self._settings.simulated_s)
        finally:
            self._free.put_nowait(device)
        return _judged(job, device)


def _judged(job: Job, device: Device) -> Evaluation:
    """The verdict on a job: a function of its candidate and the kind of device, with noise that the evaluation's id decides."""
    source = job.candidate.source
    broken = "BROKEN" in source
    true = speedup_of(source, device.name)
    if job.baseline_candidate is not None:
        true /= speedup_of(job.baseline_candidate.source, device.name)
    rng = random.Random(job.evaluation_id)  # noqa: S311
    noise = _NOISE[job.effort]

    def ratio() -> Ratio:
        value = true * math.exp(rng.gauss(0.0, noise / 2))
        return Ratio(value=value, low=value * (1 - noise), high=value * (1 + noise))

    return Evaluation(
        evaluation_id=job.evaluation_id,
        problem_digest=job.problem.digest,
        candidate_digest=digest_of(source),
        verdict=Verdict.OUTPUT_MISMATCH if broken else Verdict.PASSED,
        stage=Stage.CHECK if broken else Stage.TIME,
        message="simulated",
        language=job.language,
        effort=job.effort,
        baseline=job.baseline,
        checked_on=CheckedOn.DEVICE,
        timing=None
        if broken or job.skip_timing
        else Timing(
            speedup=ratio(),
            trust=Trust.CLAIMED,
            candidate_us=_BASELINE_US / true,
            baseline_us=_BASELINE_US,
            floor_us=_FLOOR_US,
            confirmation=ratio() if job.effort is Effort.FINAL else None,
            remarks=(NAME,),
        ),
        environment=Environment(
            device=device,
            sandbox_backend="none",
            host_kernel=platform.release(),
        ),
    )


def speedup_of(source: str, device: str = NAME) -> float:
    """The speedup that a candidate's measurements are drawn around."""
    said = _SAID.search(source)
    if said is not None and float(said[1]) > 0:
        return float(said[1])
    text = source if device == NAME else f"{device}: {source}"
    number = int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "big")
    return math.exp(random.Random(number).gauss(0.0, _SPREAD))  # noqa: S311
