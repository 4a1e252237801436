"""What is asked of one evaluation, and when its stages ran."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kernelevo_api.types import StageTime

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernelevo_api.types import BaselineKind, Effort, Language, Limits, ProblemReport, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked of one evaluation, resolved."""

    source: str
    """Of the problem: a baseline under torch.compile loads it into a runner of its own."""
    report: ProblemReport
    limits: Limits
    effort: Effort
    baseline: BaselineKind
    interpreter: bool
    skip_timing: bool
    bound_speedup: float | None
    language: Language
    profile: bool = False
    deep: bool = False
    """Whether the checking tools are asked, too."""


@dataclass(slots=True)
class Stages:
    """When each stage ran."""

    done: list[StageTime] = field(default_factory=list)

    @contextmanager
    def during(self, stage: Stage) -> Iterator[None]:
        """Record a stage, however it ends."""
        start = datetime.now(UTC)
        try:
            yield
        finally:
            self.done.append(StageTime(stage=stage, start=start, end=datetime.now(UTC)))
