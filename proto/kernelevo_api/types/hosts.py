"""An evaluator and its host: devices, languages, toolchain, isolation, limits, queue."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from kernelevo_api.types.enums import CheckedOn, DeviceKind, Effort, Language


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
    life_id: str = ""
    """Another one each time that it starts."""
