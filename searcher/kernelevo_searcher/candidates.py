"""One candidate of a run: what was measured of it, and what that says in a few words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernelevo_api.pool import describe
from kernelevo_api.types import CheckedOn, Effort, Evaluation, Verdict
from kernelevo_searcher.wording import one_line, plain, ratio_text

if TYPE_CHECKING:
    from kernelevo_api.types import DeviceRequirement, Ratio
    from kernelevo_searcher.events import CandidateProposed

__all__ = ["CandidateState", "Elsewhere", "elsewhere_line", "is_ours", "proves_speedup", "summary_of"]

_OURS = frozenset({Verdict.EVALUATOR_FAULT, Verdict.CANCELLED, Verdict.PROBLEM_FAULT})


def is_ours(evaluation: Evaluation) -> bool:
    """Whether this outcome says nothing about the candidate."""
    return evaluation.verdict in _OURS


def proves_speedup(ratio: Ratio | None) -> bool:
    """Whether the whole interval lies above 1: whatever else was measured, faster it was not shown to be."""
    return ratio is not None and ratio.low > 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """What came of verifying a candidate on another kind of device than the run's."""

    evaluation: Evaluation | None = None
    trouble: str = ""
    """Why it was not evaluated; empty where it was."""

    @property
    def speedup(self) -> Ratio | None:
        """Over the baseline on that device, by the second timing; absent where it did not pass or was not timed."""
        if self.evaluation is None or self.evaluation.verdict is not Verdict.PASSED or self.evaluation.timing is None:
            return None
        return self.evaluation.timing.confirmation or self.evaluation.timing.speedup


@dataclass(slots=True, kw_only=True)
class CandidateState:
    """One candidate and what was measured of it."""

    proposed: CandidateProposed
    order: int
    """Place among the candidates, from 0."""
    evaluations: dict[Effort, Evaluation] = field(default_factory=dict)
    """The last of each effort; those that say nothing about the candidate are left out."""
    evaluation: Evaluation | None = None
    """The most thorough there is, as far as the search is concerned (verification is not)."""
    speedup: Ratio | None = None
    """Over the baseline, by that measurement; absent where it did not pass or was not timed."""
    faults: int = 0
    """Evaluations that came to nothing through no fault of the candidate's."""
    unevaluable: str = ""
    """Why no evaluator takes it; empty otherwise."""
    children: int = 0
    family: str = ""
    """The kernel that this is a tuned version of, however often tuned; its own id where it is none."""

    @property
    def id(self) -> str:
        return self.proposed.candidate_id

    @property
    def parent_id(self) -> str | None:
        return self.proposed.parent_id

    def measured(self, effort: Effort, evaluation: Evaluation) -> None:
        """Keep what was found at this effort."""
        self.evaluations[effort] = evaluation
        # Asked for far more often than it changes.
        self.evaluation = self.evaluations.get(Effort.FULL) or self.evaluations.get(Effort.SCREEN)
        best = self.evaluation
        passed = best is not None and best.verdict is Verdict.PASSED
        self.speedup = best.timing.speedup if best is not None and passed and best.timing is not None else None

    @property
    def failed(self) -> bool:
        """It was evaluated and did not pass."""
        return self.evaluation is not None and self.evaluation.verdict is not Verdict.PASSED

    @property
    def finalist(self) -> bool:
        """It may be the end of the run: it passed on the device and was timed."""
        evaluation = self.evaluation
        return (
            self.speedup is not None and evaluation is not None and evaluation.checked_on is not CheckedOn.INTERPRETER
        )

    @property
    def low(self) -> float:
        """Lower bound of the speedup; 0 where there is none."""
        return self.speedup.low if self.speedup is not None else 0.0


def summary_of(evaluation: Evaluation | None) -> str:
    """An evaluation in a few words."""
    if evaluation is None:
        return "not evaluated"
    if evaluation.verdict is Verdict.PASSED:
        timing = evaluation.timing
        if timing is None or timing.speedup is None:
            return "passed, not timed"
        ratio = timing.speedup
        bound = ", stopped at the bound" if timing.stopped_at_bound else ""
        return f"{ratio.value:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}]{bound}"
    first_line = evaluation.message.strip().splitlines()[0] if evaluation.message.strip() else ""
    return f"{evaluation.verdict.value}: {first_line}" if first_line else evaluation.verdict.value


def elsewhere_line(device: DeviceRequirement, found: Elsewhere) -> str:
    """What came of verifying the winner on another kind of device."""
    where = f"on {plain(describe(device))}"
    if found.speedup is not None:
        said = "verified" if proves_speedup(found.speedup) else "no speedup was proved"
        return f"{said} {where}: {ratio_text(found.speedup)}"
    why = summary_of(found.evaluation) if found.evaluation is not None else found.trouble
    return f"not verified {where}: {one_line(why, 200)}"
