"""The messages of the contract as plain Python values.

What crosses the wire, without protobuf: frozen, slotted dataclasses and enums whose names and fields are those of
`evaluator.proto` (a test holds the two together). Absent is `None`. Searcher and evaluator both speak in these;
`kernelevo_api.wire` maps them to and from messages.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import datetime, timedelta  # noqa: TC003 - wire.py resolves these hints at run time


class ErrorReason(enum.Enum):
    """Why a call was not carried out: the `reason` of google.rpc.ErrorInfo."""

    INVALID_REQUEST = "invalid_request"
    """A field is missing or malformed; BadRequest names it. INVALID_ARGUMENT."""
    UNKNOWN_PROBLEM = "unknown_problem"
    """The problem's digest is not stored here: register it and resend. NOT_FOUND."""
    PROBLEM_REFUSED = "problem_refused"
    """The problem failed its audit or cannot be read. FAILED_PRECONDITION."""
    UNKNOWN_EVALUATION = "unknown_evaluation"
    """No evaluation of this id is stored here. NOT_FOUND."""
    REQUEST_ID_REUSED = "request_id_reused"
    """The request_id was used before with other content. ALREADY_EXISTS."""
    QUEUE_FULL = "queue_full"
    """The queue, or this client's share of it, is full; RetryInfo holds the delay. RESOURCE_EXHAUSTED."""
    LIMIT_TOO_HIGH = "limit_too_high"
    """A limit above the server's maximum was asked for. INVALID_ARGUMENT."""
    TOO_LARGE = "too_large"
    """A source, a log or a message is larger than the server takes. INVALID_ARGUMENT."""
    UNSUPPORTED = "unsupported"
    """The server does not offer this language, device or effort. FAILED_PRECONDITION."""
    DRAINING = "draining"
    """The server is shutting down: try another, or later. UNAVAILABLE."""
    EVALUATOR_FAULT = "evaluator_fault"
    """A fault of the evaluator's own; safe to retry. UNAVAILABLE."""
    UNAUTHENTICATED = "unauthenticated"
    """No token, or one that is not known. UNAUTHENTICATED."""
    STORE_UNAVAILABLE = "store_unavailable"
    """The store is full or cannot be written; nothing was lost. UNAVAILABLE."""


class Language(enum.Enum):
    """What a candidate is written in."""

    TRITON = "triton"
    CUDA_INLINE = "cuda_inline"
    """torch's load_inline with cuda_sources."""
    PYCUDA = "pycuda"
    CUTE = "cute"
    """nvidia-cutlass-dsl."""
    CPP_INLINE = "cpp_inline"
    """torch's load_inline with C++ for the CPU."""
    TORCH = "torch"
    """Plain torch operators."""


class Bottleneck(enum.Enum):
    """What holds a call up."""

    MEMORY = "memory"
    """It moves its bytes about as fast as the device can."""
    COMPUTE = "compute"
    """It computes about as fast as the device can."""
    LAUNCH = "launch"
    """Its kernels hold less than half of its time: launching them, or the host, is what takes it."""
    NEITHER = "neither"
    """Neither limit is near: traffic beyond the least, dependencies, too little in flight."""


class DeviceKind(enum.Enum):
    CPU = "cpu"
    CUDA = "cuda"


class Effort(enum.Enum):
    """How much is spent on one evaluation."""

    SCREEN = "screen"
    """One small check, a short timing; stops as soon as the candidate cannot beat `bound_speedup`."""
    FULL = "full"
    """The default."""
    FINAL = "final"
    """More seeds, every declared shape, deep checks, two independent timings in fresh runners."""


class TimingPolicy(enum.Enum):
    """What one timed call is."""

    PIPELINED = "pipelined"
    """Calls back to back."""
    LATENCY = "latency"
    """A join after each call."""


class TimingMode(enum.Enum):
    """How calls were issued while timing."""

    CALLS = "calls"
    GRAPH_REPLAY = "graph_replay"


class Trust(enum.Enum):
    """How far a timing is confirmed from outside the candidate's process."""

    BOUNDED = "bounded"
    """The outside clock bounds it, and the timed calls were checked."""
    CLAIMED = "claimed"
    """Partly the runner's own word; never the basis of a headline."""


class CheckedOn(enum.Enum):
    """What the outputs were computed on when they were checked."""

    DEVICE = "device"
    INTERPRETER = "interpreter"
    """Triton's interpreter: checked, never timed, never final."""


class Stage(enum.Enum):
    ADMIT = "admit"
    QUEUE = "queue"
    BUILD = "build"
    PREPARE = "prepare"
    CHECK = "check"
    TIME = "time"
    PROFILE = "profile"
    AUDIT = "audit"
    """Registration only: the problem's audit."""
    BASELINE = "baseline"
    """Registration only: timing the baselines."""


class Verdict(enum.Enum):
    PASSED = "passed"
    """Every check passed. A candidate slower than the baseline has passed too, with a speedup below one."""
    COMPILE_ERROR = "compile_error"
    LOAD_ERROR = "load_error"
    RUNTIME_ERROR = "runtime_error"
    TIMEOUT = "timeout"
    """`Evaluation.limit` says which limit."""
    OUT_OF_MEMORY = "out_of_memory"
    """Host or device memory, beyond the published quota."""
    OUTPUT_MISMATCH = "output_mismatch"
    NONDETERMINISTIC = "nondeterministic"
    INPUT_MUTATED = "input_mutated"
    WRONG_INTERFACE = "wrong_interface"
    NOT_THE_LANGUAGE = "not_the_language"
    TIMING_DISPUTED = "timing_disputed"
    """Outside clock and inner evidence, or two outside timings, disagree."""
    BELOW_FLOOR = "below_floor"
    """Faster than the bytes that must be moved allow."""
    SANDBOX_VIOLATION = "sandbox_violation"
    CRASHED = "crashed"
    CANCELLED = "cancelled"
    PROBLEM_FAULT = "problem_fault"
    """The reference failed, not the candidate."""
    EVALUATOR_FAULT = "evaluator_fault"
    """Ours."""


class LimitKind(enum.Enum):
    """Which limit ended an evaluation."""

    BUILD_TIME = "build_time"
    PREPARE_TIME = "prepare_time"
    CHECK_TIME = "check_time"
    RUN_TIME = "run_time"
    CPU_TIME = "cpu_time"
    MEMORY = "memory"
    DEVICE_MEMORY = "device_memory"
    PROCESSES = "processes"
    OUTPUT = "output"
    FILE_SIZE = "file_size"
    MESSAGE_SIZE = "message_size"
    OPEN_FILES = "open_files"
    TEMPORARY_FILES = "temporary_files"


class SandboxEnd(enum.Enum):
    """Why a runner or build sandbox ended, as seen from outside it."""

    EXITED = "exited"
    SIGNALED = "signaled"
    OUT_OF_MEMORY = "out_of_memory"
    WALL_TIMEOUT = "wall_timeout"
    CPU_TIMEOUT = "cpu_timeout"
    OUTPUT_LIMIT = "output_limit"
    FORBIDDEN_CALL = "forbidden_call"
    KILLED = "killed"
    OUT_OF_DEVICE_MEMORY = "out_of_device_memory"


class BaselineKind(enum.Enum):
    EAGER = "eager"
    TORCH_COMPILE = "torch_compile"
    CANDIDATE = "candidate"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArithmeticRate:
    """Dense multiply-add rate of one dtype, measured."""

    dtype: str = ""
    tflop_per_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device, with the facts that a prompt needs."""

    id: str = ""
    """Stable on this host, e.g. "cpu" or an NVML UUID."""
    kind: DeviceKind | None = None
    name: str = ""
    architecture: str = ""
    """E.g. "sm_90" or "x86_64 avx2 fma"."""
    multiprocessors: int = 0
    """Streaming multiprocessors, or cores."""
    shared_memory_per_block_bytes: int = 0
    shared_memory_per_multiprocessor_bytes: int = 0
    registers_per_multiprocessor: int = 0
    l2_bytes: int = 0
    """Last-level cache."""
    memory_bytes: int = 0
    measured_bandwidth_gb_per_s: float | None = None
    """Read plus write of a large copy, measured here."""
    measured_rates: tuple[ArithmeticRate, ...] = ()
    """Dense multiply-add rate, measured here, by dtype."""
    driver_version: str = ""
    healthy: bool = False
    cpus: tuple[int, ...] = ()
    """Cores a CPU lane runs on."""
    fault: str = ""
    """Why it is not healthy, and what to do about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageSupport:
    """A language this evaluator takes, on a kind of device."""

    language: Language | None = None
    device_kind: DeviceKind | None = None
    checked_on: CheckedOn | None = None
    notes: str = ""
    """Notes on how a candidate must look here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool and its version."""

    name: str = ""
    """E.g. "torch", "triton", "nvcc", "g++"."""
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """A fact about isolation that was found by trying it."""

    name: str = ""
    holds: bool = False
    evidence: str = ""
    remedy: str = ""
    """What to do about it where it does not hold."""
    essential: bool = False
    """Without it no candidate is run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxInfo:
    """The isolation in use and what it was seen to guarantee."""

    backend: str = ""
    """"bubblewrap", "docker" or "none"."""
    guarantees: tuple[Guarantee, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits cover execution only; the gRPC deadline covers the whole call, queue included."""

    build_time: timedelta | None = None
    prepare_time: timedelta | None = None
    check_time: timedelta | None = None
    run_time: timedelta | None = None
    profile_time: timedelta | None = None
    memory_bytes: int | None = None
    device_memory_bytes: int | None = None
    processes: int | None = None
    output_bytes: int | None = None
    temporary_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """How busy the evaluator is."""

    lanes: int = 0
    running: int = 0
    queued: int = 0
    capacity: int = 0
    capacity_per_client: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What an evaluator can do, and on what."""

    api_version: str = ""
    """Of the messages, e.g. "v1"."""
    protocol_version: int = 0
    """Of the referee's procedure; part of every cache key."""
    evaluator_version: str = ""
    """The evaluator's own version."""
    instance_id: str = ""
    """Stable for one installation; names its store."""
    devices: tuple[Device, ...] = ()
    languages: tuple[LanguageSupport, ...] = ()
    toolchain: tuple[Tool, ...] = ()
    sandbox: SandboxInfo | None = None
    default_limits: Limits | None = None
    """Used where a request names none."""
    maximum_limits: Limits | None = None
    """A request above one of these is refused, never clamped."""
    maximum_source_bytes: int = 0
    queue: QueueState | None = None
    efforts: tuple[Effort, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem is its source; its digest is the SHA-256 of the source, in lower-case hexadecimal."""

    source: str = ""
    """KernelBench form: class Model, get_inputs(), get_init_inputs(), optionally the KERNELEVO literal."""
    name: str = ""
    """For people; not part of the digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterProblemRequest:
    """Registration of one problem."""

    problem: Problem | None = None
    accept_refused: bool = False
    """Accept what the audit would refuse; every result carries the mark."""
    client_id: str = ""
    """Names the client for quotas and logs."""
    with_seeds: bool = False
    """Return candidates that need no model too; they are made where the stored report has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemPolicy:
    """The problem's own policy, resolved."""

    dtype: str = ""
    math: str = ""
    """"ieee" or "tf32"."""
    languages: tuple[Language, ...] = ()
    rtol: float | None = None
    atol: float | None = None
    dynamic_weights: bool = False
    timing: TimingPolicy | None = None
    shapes: tuple[str, ...] = ()
    """Each a set of named sizes, as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A remark of the audit or of the static look. Never a verdict by itself."""

    code: str = ""
    """E.g. "constant_output", "reads_expected"."""
    message: str = ""
    refuses: bool = False
    """For a problem: refused unless accepted by flag."""
    line: int | None = None
    """In the source, from 1; absent where it has no line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """Shape, dtype and size of a tensor."""

    name: str = ""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBudget:
    """The honest error of the reference at the problem's dtype, and what a candidate is allowed."""

    input_class: str = ""
    """E.g. "declared", "scaled x16"."""
    rtol: float = 0.0
    atol: float = 0.0
    norm_rtol: float = 0.0
    """Bound on |a-e|_2 / |e|_2."""
    honest_norm_error: float = 0.0
    source: str = ""
    """"floor", "honest" or "problem"."""
    output_index: int = 0
    """Which output, from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What a candidate is compared with."""

    kind: BaselineKind | None = None
    median_us: float = 0.0
    """Of one call, by the outside clock."""
    low_us: float = 0.0
    high_us: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """A candidate that needed no model."""

    name: str = ""
    source: str = ""
    language: Language | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemReport:
    """What the audit found, and the baselines."""

    problem_digest: str = ""
    name: str = ""
    policy: ProblemPolicy | None = None
    findings: tuple[Finding, ...] = ()
    accepted_with_mark: bool = False
    """Accepted although the audit would refuse it."""
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()
    expected_dtype: str = ""
    """Precision of the expected outputs, e.g. "float64"."""
    budgets: tuple[ErrorBudget, ...] = ()
    compulsory_bytes: int = 0
    """Bytes that must be read and written once."""
    floor_us: float | None = None
    """Time of those bytes at the device's measured bandwidth."""
    baselines: tuple[Baseline, ...] = ()
    seeds: tuple[Seed, ...] = ()
    """Candidates that need no model, e.g. TorchInductor's kernels; where they were asked for."""
    mutates_inputs: bool = False
    init_inputs: str = ""
    """Arguments of Model and ModelNew, as text."""
    weights: tuple[TensorInfo, ...] = ()
    """Weights and buffers of the reference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """The kernel under test."""

    source: str = ""
    """One self-contained Python module that defines ModelNew."""
    language: Language | None = None
    """Unspecified: recognised from the source, without importing it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRequirement:
    """What the device must be; empty fields do not matter."""

    kind: DeviceKind | None = None
    name: str = ""
    architecture: str = ""
    minimum_memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateRequest:
    """One evaluation to carry out."""

    request_id: str = ""
    """UUID chosen by the client; joins or replays."""
    problem_digest: str | None = None
    problem: Problem | None = None
    candidate: Candidate | None = None
    effort: Effort | None = None
    limits: Limits | None = None
    baseline: BaselineKind | None = None
    """Eager unless said otherwise."""
    baseline_candidate: Candidate | None = None
    """The other side when `baseline` is `BaselineKind.CANDIDATE`; it is checked like the first."""
    bound_speedup: float | None = None
    """With `Effort.SCREEN` or `Effort.FINAL`: stop once the upper bound of the speedup is below this. A final whose lower
    bound does not reach it is not timed a second time."""
    fresh: bool = False
    """Measure again even where an equal evaluation is stored."""
    profile: bool = False
    device: DeviceRequirement | None = None
    client_id: str = ""
    accept_refused_problem: bool = False
    skip_timing: bool = False
    """Check only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where an evaluation is. Advisory."""

    evaluation_id: str = ""
    stage: Stage | None = None
    message: str = ""
    """One line for people."""
    time: datetime | None = None
    queue_position: int | None = None
    """While queued: how many are ahead."""


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
