"""The fixed choices of the contract, and its reasons for errors."""

from __future__ import annotations

import enum


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
    PROCESS_LIMIT = "process_limit"


class BaselineKind(enum.Enum):
    EAGER = "eager"
    TORCH_COMPILE = "torch_compile"
    CANDIDATE = "candidate"
