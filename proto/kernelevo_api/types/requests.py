"""Evaluations as they are asked for, and how far they are."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from kernelevo_api.types.enums import BaselineKind, DeviceKind, Effort, Language, Stage
from kernelevo_api.types.hosts import Limits
from kernelevo_api.types.problems import Problem


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
