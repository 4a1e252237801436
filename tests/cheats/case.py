"""What a case of the collection is, and what counts as the right answer to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernelevo_api.types import Effort, Evaluation, Finding, Language, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

NO_GAIN = 1.5
"""A speedup that a candidate which computes as the reference does cannot show; where its interval holds 1, it shows none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem's source and what of its policy is not the default."""

    source: str
    policy: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One way to fool an evaluator, and beside it the honest code that looks most like it.

    `right` holds verdicts in lower case, and besides them "slow" (`PASSED` without a speedup that was not earned), "finding:CODE"
    (`PASSED`, and the report says so) and, for a problem, "refused:CODE".
    """

    entry: int
    """Number in the collection."""
    part: str
    """Which of its ways; unique within the entry."""
    right: tuple[str, ...]
    cheat: str
    """Source of a candidate, or of a problem where the problem is what cheats."""
    twin: str
    problem: Problem
    device: str = "cpu"
    language: Language = Language.CPP_INLINE
    effort: Effort = Effort.SCREEN
    timed: bool = False
    limits: Mapping[str, object] = field(default_factory=dict)
    audited: bool = False
    """The cheat and its twin are problems: what is judged is their audit."""
    slow: bool = False

    @property
    def name(self) -> str:
        """E.g. "18 by id [cpu]"."""
        return f"{self.entry:02d} {self.part} [{self.device}]"


@dataclass(frozen=True, slots=True)
class Judged:
    """What became of one source, in short: `answer` as in `Case.right`."""

    answers: tuple[str, ...]
    told: str

    @property
    def shown(self) -> str:
        """The answer as the table has it."""
        return self.answers[0]


def judged(evaluation: Evaluation, findings: tuple[Finding, ...] = ()) -> Judged:
    """The answers that an evaluation gives; `findings` of the static look beside the evaluation's own."""
    verdict = evaluation.verdict
    assert verdict is not None
    answers = [verdict.value]
    if verdict is Verdict.PASSED:
        speedup = evaluation.timing.speedup if evaluation.timing is not None else None
        if speedup is not None:
            answers[0] = f"passed, {speedup.value:.2f}x [{speedup.low:.2f}, {speedup.high:.2f}]"
            answers.append("slow" if speedup.value < NO_GAIN or speedup.low <= 1.0 else "fast")
        answers += [f"finding:{finding.code}" for finding in (*evaluation.findings, *findings)]
        answers.append("passed")
    return Judged(tuple(answers), evaluation.message)


def is_right(case: Case, found: Judged) -> bool:
    """Whether a cheat was stopped."""
    return any(answer in case.right for answer in found.answers)


def is_passed(case: Case, found: Judged) -> bool:
    """Whether an honest twin passed, without the finding that its cheat is told by."""
    told = {answer for answer in case.right if answer.startswith("finding:")} & set(found.answers)
    return ("accepted" if case.audited else "passed") in found.answers and not told
