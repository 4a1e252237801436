"""Problems, and what their audit finds."""

from __future__ import annotations

from dataclasses import dataclass

from kernelevo_api.types.enums import BaselineKind, Language, TimingPolicy


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
