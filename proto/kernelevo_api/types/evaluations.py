"""Evaluations as they end: the verdict and its evidence."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from kernelevo_api.types.enums import (
    BaselineKind,
    Bottleneck,
    CheckedOn,
    Effort,
    Language,
    LimitKind,
    SandboxEnd,
    Stage,
    TimingMode,
    TimingPolicy,
    Trust,
    Verdict,
)
from kernelevo_api.types.hosts import Device, Tool
from kernelevo_api.types.problems import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedText:
    """Text of which the middle may have been cut."""

    head: str = ""
    tail: str = ""
    total_bytes: int = 0
    """Of the whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelResources:
    """What a kernel uses on the device."""

    kernel: str = ""
    registers: int | None = None
    shared_memory_bytes: int | None = None
    spill_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Artefact:
    """A built object."""

    name: str = ""
    digest: str = ""
    bytes: int = 0
    kernels: tuple[KernelResources, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """One message of a compiler."""

    severity: str = ""
    """"error", "warning" or "note"."""
    message: str = ""
    file: str = ""
    """File as the candidate's author knows it, e.g. "cpp_sources[0]"."""
    line: int | None = None
    column: int | None = None
    excerpt: str = ""
    """The lines around it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """How the build went."""

    cached: bool = False
    wall_s: float = 0.0
    cpu_s: float | None = None
    peak_memory_bytes: int | None = None
    log: CapturedText | None = None
    artefacts: tuple[Artefact, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """The worst element of a failed comparison."""

    input_class: str = ""
    output_index: int = 0
    elements_wrong: int = 0
    elements: int = 0
    index: tuple[int, ...] = ()
    """The worst element."""
    got: float = 0.0
    expected: float = 0.0
    error: float = 0.0
    budget: float = 0.0
    norm_error: float | None = None
    """Norm-wise error over its budget, where that decided."""
    norm_budget: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Correctness:
    """What was compared, and how far off it was."""

    trials: int = 0
    outputs_compared: int = 0
    elements_compared: int = 0
    worst_norm_error: float | None = None
    """Largest norm-wise error seen, and the budget that applied to it."""
    norm_budget: float | None = None
    mismatch: Mismatch | None = None
    timed_calls_compared: int = 0
    """Timed calls whose outputs were compared too."""
    input_classes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A ratio with its interval."""

    value: float
    low: float
    high: float
    confidence: float = 0.95
    """Level of the interval, e.g. 0.95."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockSample:
    """Device clocks at one moment."""

    time: datetime | None = None
    sm_mhz: int | None = None
    memory_mhz: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttle_reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Evidence of how fast, and how sure."""

    policy: TimingPolicy | None = None
    mode: TimingMode | None = None
    trust: Trust | None = None
    speedup: Ratio | None = None
    """Median over block pairs of baseline time over candidate time, by the outside clock, and its 95 % interval, widened by
    the baseline's measurement against itself."""
    candidate_us: float | None = None
    """Of one call."""
    baseline_us: float | None = None
    baseline_against_itself: Ratio | None = None
    """The baseline measured against itself: how much this host wanders."""
    baseline_drift: float | None = None
    """Baseline after the candidate was gone, over the baseline before."""
    candidate_samples_us: tuple[float, ...] = ()
    """Raw outside times of one call, in the order they were taken; pairs line up."""
    baseline_samples_us: tuple[float, ...] = ()
    claimed_candidate_us: float | None = None
    """What the runner itself measured; describes the distribution only."""
    floor_us: float | None = None
    remarks: tuple[str, ...] = ()
    """E.g. "explicit flush", "throttled"."""
    clocks: tuple[ClockSample, ...] = ()
    stopped_at_bound: bool = False
    """With `Effort.SCREEN`: timing ended early because the bound was out of reach."""
    confirmation: Ratio | None = None
    """With `Effort.FINAL`: a second, independent timing in fresh runners."""
    calls_per_block: int = 0
    ring_slots: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """On what it ran."""

    device: Device | None = None
    toolchain: tuple[Tool, ...] = ()
    sandbox_backend: str = ""
    image_digest: str = ""
    """Of the container image, where there is one."""
    evaluator_version: str = ""
    protocol_version: int = 0
    host_kernel: str = ""
    memory_enforced_by: str = ""
    """E.g. "cgroup_v2"; who held the memory limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """When one stage ran."""

    stage: Stage | None = None
    start: datetime | None = None
    end: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """When each stage ran."""

    stages: tuple[StageTime, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RaisedError:
    """An error from the candidate's own code."""

    type: str = ""
    """E.g. "ValueError"."""
    message: str = ""
    traceback: str = ""
    """Of the candidate's own frames."""
    line: int | None = None
    """Line in the candidate's source, from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxEnding:
    """How the candidate's sandbox ended."""

    kind: SandboxEnd | None = None
    exit_code: int | None = None
    signal: int | None = None
    detail: str = ""
    peak_memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLaunch:
    """One kernel of the launch trace."""

    kernel: str = ""
    count: int = 0
    total_us: float = 0.0
    of_candidate: bool = False
    """The language's own kernels, as opposed to a library's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """A call beside what the device can do, as measured on it."""

    bytes: float = 0.0
    """That every correct implementation reads and writes once."""
    gb_per_s: float = 0.0
    bandwidth_share: float = 0.0
    """Of the bandwidth that was measured; above 1 where a cache holds a part."""
    operations: float = 0.0
    """Of the reference's matrix products, convolutions and attention (a multiply-add is two); 0 where it has none."""
    tflop_per_s: float = 0.0
    rate_share: float | None = None
    """Of the rate that was measured for dense products at the problem's dtype."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCounters:
    """What the device counted while one kernel ran. Shares are of 1, and means over the launches by their time."""

    kernel: str = ""
    count: int = 0
    total_us: float = 0.0
    memory_share: float | None = None
    """Of the memory's peak rate."""
    compute_share: float | None = None
    """Of the multiprocessors' peak rate."""
    occupancy: float | None = None
    """Of the warps that a multiprocessor can hold."""
    l2_hit_share: float | None = None
    registers: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Where a call's time goes. Recorded in the candidate's process: advice to its author, no evidence."""

    launches: tuple[KernelLaunch, ...] = ()
    """By time, the longest first; counts and times of one call."""
    call_us: float | None = None
    """By the clock outside; absent where nothing was timed."""
    traced_us: float = 0.0
    """What the launches hold."""
    roofline: Roofline | None = None
    bottleneck: Bottleneck | None = None
    remarks: tuple[str, ...] = ()
    """What could not be told, and why."""
    counters: tuple[KernelCounters, ...] = ()
    """By the device's counters, the longest first; of one call. Empty where the host does not let them be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepCheck:
    """What a checking tool said of one call. It runs in the candidate's sandbox: it tells of faults, and proves none absent."""

    tool: str = ""
    """"memcheck", "racecheck", or "launches"."""
    ran: bool = False
    """Whether it came to its end; if not, `message` says why."""
    faults: int = 0
    """Each told in a finding, as far as there is room."""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The outcome of one run of one candidate against one problem under one policy."""

    evaluation_id: str = ""
    request_id: str = ""
    problem_digest: str = ""
    candidate_digest: str = ""
    """SHA-256 of the candidate's source."""
    verdict: Verdict
    stage: Stage | None = None
    """The stage that decided it."""
    message: str = ""
    """What happened and what can be done about it."""
    limit: LimitKind | None = None
    """With `Verdict.TIMEOUT`, `Verdict.OUT_OF_MEMORY` and other exhausted limits."""
    language: Language | None = None
    effort: Effort | None = None
    build: Build | None = None
    correctness: Correctness | None = None
    timing: Timing | None = None
    environment: Environment | None = None
    timeline: Timeline | None = None
    findings: tuple[Finding, ...] = ()
    checked_on: CheckedOn | None = None
    error: RaisedError | None = None
    """An error raised by the candidate's own code."""
    sandbox_ending: SandboxEnding | None = None
    """How the candidate's sandbox ended, where that decided the verdict."""
    output: CapturedText | None = None
    """What the candidate printed."""
    from_cache: bool = False
    """Answered from an equal earlier evaluation."""
    baseline: BaselineKind | None = None
    problem_accepted_with_mark: bool = False
    """The problem was accepted although its audit refused it."""
    created_at: datetime | None = None
    profile: Profile | None = None
    deep_checks: tuple[DeepCheck, ...] = ()
    """On a GPU, with `Effort.FINAL` or where a profile was asked for."""
