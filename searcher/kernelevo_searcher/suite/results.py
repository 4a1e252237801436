"""What a suite has come to, read from its runs: a result for each problem, and all of them together."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from kernelevo_api.json import to_json
from kernelevo_api.types import Effort, Ratio, Verdict
from kernelevo_searcher.candidates import is_ours, proves_speedup
from kernelevo_searcher.checking import State
from kernelevo_searcher.events import EvaluationFinished
from kernelevo_searcher.state import replay
from kernelevo_searcher.store import RunNotFound, read_records
from kernelevo_searcher.suite.statistics import HOLDS, LEVELS, Mean, Share, fast_p, geometric_mean

if TYPE_CHECKING:
    from kernelevo_api.types import BaselineKind, Evaluation
    from kernelevo_searcher.state import RunState
    from kernelevo_searcher.suite.folder import Compared, Suite, SuiteProblem

__all__ = ["Ending", "Over", "ProblemResult", "SuiteResults", "ending_text", "problem_result", "read_results"]


class Ending(StrEnum):
    """What became of one problem."""

    FASTER = "faster"
    """A speedup was proved: the whole interval of the verified kernel lies above 1."""
    NOT_FASTER = "not_faster"
    """A kernel was verified, and not proved to be faster."""
    NONE_PASSED = "none_passed"
    """The search ended without a kernel that was verified."""
    REFUSED = "refused"
    """Its audit refuses it: nothing could be proved on it."""
    FAILED = "failed"
    """It does not get through its audit."""
    OPEN = "open"
    """Not searched to the end yet."""


def ending_text(ending: Ending) -> str:
    """An ending in words."""
    return {
        Ending.FASTER: "faster",
        Ending.NOT_FASTER: "no speedup proved",
        Ending.NONE_PASSED: "nothing verified",
        Ending.REFUSED: "refused",
        Ending.FAILED: "failed",
        Ending.OPEN: "open",
    }[ending]


TAKEN = (Ending.FASTER, Ending.NOT_FASTER, Ending.NONE_PASSED)
"""Endings of problems that were searched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemResult:
    """One problem."""

    problem: SuiteProblem
    ending: Ending
    why: str = ""
    """Codes and reasons where it was not taken; why the search ended where it was."""
    best_id: str | None = None
    speedup: Ratio | None = None
    """Of the verified kernel, over the baseline that the search went by: the second timing of its verification."""
    over_other: Ratio | None = None
    """Of the same kernel, over the other baseline."""
    other_why: str = ""
    """Why that is absent where there is a verified kernel."""
    kernel_us: float | None = None
    baseline_us: float | None = None
    language: str = ""
    proposer: str = ""
    verdicts: tuple[tuple[str, int], ...] = ()
    """Of evaluations that say something about a candidate, those of the verification included."""
    evaluated: int = 0
    tokens: int = 0
    dollars: float = 0.0
    dollars_unknown: bool = False
    active_s: float = 0.0
    device: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Over:
    """All problems over one baseline."""

    baseline: BaselineKind
    shares: tuple[Share, ...]
    """For each of `LEVELS`, of all problems that have come to an end, those that were not taken included."""
    verified: Mean | None
    """Of the verified kernels, the slower ones as well."""
    kept: Mean | None
    """Of all problems that were searched, where the original is kept unless its speedup is proved: 1 for those."""
    missing: int = 0
    """Verified kernels that were not measured over this baseline: they count as not fast, and are in no mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteResults:
    """A suite's results."""

    suite: Suite
    problems: tuple[ProblemResult, ...]
    over: tuple[Over, ...]
    """The baseline of the searches first."""
    endings: tuple[tuple[Ending, int], ...]
    verdicts: tuple[tuple[str, int], ...]
    evaluated: int
    tokens: int
    dollars: float
    dollars_unknown: bool
    active_s: float
    device: str

    @property
    def open(self) -> int:
        """Problems that have not come to an end yet."""
        return dict(self.endings).get(Ending.OPEN, 0)

    def as_json(self) -> dict[str, Any]:
        """For programs: the format of `results.json`."""
        return {
            "suite": self.suite.name,
            "folder": str(self.suite.path),
            "kernelevo": self.suite.version,
            "created": self.suite.created.isoformat(),
            "device": self.device,
            "settings": to_json(self.suite.settings),
            "problems": len(self.problems),
            "endings": {ending.value: count for ending, count in self.endings},
            "over": {one.baseline.value: _over_json(one) for one in self.over},
            "interval": HOLDS,
            "verdicts": dict(self.verdicts),
            "evaluated": self.evaluated,
            "tokens": self.tokens,
            "dollars": None if self.dollars_unknown else round(self.dollars, 6),
            "minutes": round(self.active_s / 60, 2),
            "results": [_problem_json(one, self.suite) for one in self.problems],
        }


def read_results(suite: Suite) -> SuiteResults:
    """Read every run of a suite, also while they go on."""
    outcomes = suite.outcomes()
    results = []
    for problem in suite.problems:
        refused = outcomes.not_taken.get(problem.folder)
        if refused is not None:
            ending = Ending.REFUSED if refused.state is State.REFUSED else Ending.FAILED
            pairs = zip(refused.codes or ("",) * len(refused.reasons), refused.reasons, strict=False)
            why = "; ".join(f"{code}: {reason}" if code else reason for code, reason in pairs)
            results.append(ProblemResult(problem=problem, ending=ending, why=why))
        else:
            results.append(problem_result(suite, problem, outcomes.compared.get(problem.folder)))
    return _together(suite, tuple(results))


def problem_result(suite: Suite, problem: SuiteProblem, compared: Compared | None) -> ProblemResult:
    """What the run of a problem has come to."""
    try:
        records = read_records(suite.run_dir(problem))
    except RunNotFound:
        return ProblemResult(problem=problem, ending=Ending.OPEN)
    state = replay(records)
    verdicts = Counter(
        record.event.evaluation.verdict.value
        for record in records
        if isinstance(record.event, EvaluationFinished) and not is_ours(record.event.evaluation)
    )
    total, finished = state.spending.total, state.finished
    common: dict[str, Any] = {
        "problem": problem,
        "verdicts": tuple(verdicts.most_common()),
        "evaluated": state.evaluated,
        "tokens": state.usage.total_tokens,
        "dollars": total.dollars,
        "dollars_unknown": total.dollars_unknown,
        "active_s": state.active_s,
        "device": state.connected.device.name if state.connected is not None else "",
    }
    if finished is None:
        return ProblemResult(ending=Ending.OPEN, **common)
    if finished.best_id is None or finished.speedup is None:
        return ProblemResult(ending=Ending.NONE_PASSED, why=finished.reason, **common)
    final = _final(state, finished.best_id)
    ratio, why = _compared(suite, compared, finished.best_id)
    return ProblemResult(
        ending=Ending.FASTER if proves_speedup(finished.speedup) else Ending.NOT_FASTER,
        why=finished.reason,
        best_id=finished.best_id,
        speedup=finished.speedup,
        over_other=ratio,
        other_why=why,
        kernel_us=final.timing.candidate_us if final is not None and final.timing is not None else None,
        baseline_us=final.timing.baseline_us if final is not None and final.timing is not None else None,
        language=final.language.value if final is not None and final.language is not None else "",
        proposer=state.candidates[finished.best_id].proposed.proposer,
        **common,
    )


def _final(state: RunState, candidate_id: str) -> Evaluation | None:
    candidate = state.candidates[candidate_id]
    return candidate.evaluations.get(Effort.FINAL) or candidate.evaluation


def _compared(suite: Suite, compared: Compared | None, best_id: str) -> tuple[Ratio | None, str]:
    if not suite.other_baseline:
        return None, "not asked for"
    if compared is None or compared.candidate_id != best_id:
        return None, "not measured yet"
    evaluation = compared.evaluation
    if evaluation.verdict is not Verdict.PASSED or evaluation.timing is None:
        return None, f"{evaluation.verdict.value}: {evaluation.message}"
    return evaluation.timing.speedup, ""


def _together(suite: Suite, results: tuple[ProblemResult, ...]) -> SuiteResults:
    endings = Counter(one.ending for one in results)
    verdicts: Counter[str] = Counter()
    for one in results:
        verdicts.update(dict(one.verdicts))
    first, other = suite.baselines
    over = [_over(first, results, [one.speedup for one in results])]
    if suite.other_baseline:
        over.append(_over(other, results, [one.over_other for one in results]))
    return SuiteResults(
        suite=suite,
        problems=results,
        over=tuple(over),
        endings=tuple((ending, endings[ending]) for ending in Ending if endings[ending]),
        verdicts=tuple(verdicts.most_common()),
        evaluated=sum(one.evaluated for one in results),
        tokens=sum(one.tokens for one in results),
        dollars=sum(one.dollars for one in results),
        dollars_unknown=any(one.dollars_unknown for one in results),
        active_s=sum(one.active_s for one in results),
        device=next((one.device for one in results if one.device), suite.device.name if suite.device else ""),
    )


def _over(baseline: BaselineKind, results: tuple[ProblemResult, ...], ratios: list[Ratio | None]) -> Over:
    pairs = list(zip(results, ratios, strict=True))
    ended = [ratio for one, ratio in pairs if one.ending is not Ending.OPEN]
    searched = [
        ratio for one, ratio in pairs if one.ending in TAKEN and (ratio is not None or one.ending is Ending.NONE_PASSED)
    ]
    return Over(
        baseline=baseline,
        shares=tuple(fast_p(ended, level) for level in LEVELS),
        verified=geometric_mean([ratio.value for ratio in ended if ratio is not None]),
        kept=geometric_mean(
            [ratio.value if ratio is not None and proves_speedup(ratio) else 1.0 for ratio in searched]
        ),
        missing=sum(one.best_id is not None and ratio is None for one, ratio in pairs),
    )


def _over_json(over: Over) -> dict[str, Any]:
    def mean(one: Mean | None) -> dict[str, Any] | None:
        return None if one is None else {"value": one.value, "low": one.low, "high": one.high, "problems": one.count}

    return {
        "fast_p": [
            {"p": one.level, "share": one.value, "problems": one.count, "certain": one.certain, "of": one.of}
            for one in over.shares
        ],
        "geometric_mean_of_verified": mean(over.verified),
        "geometric_mean_where_faster_is_proved_else_1": mean(over.kept),
        "verified_but_not_measured": over.missing,
    }


def _problem_json(one: ProblemResult, suite: Suite) -> dict[str, Any]:
    first, other = suite.baselines
    return {
        "name": one.problem.name,
        "run": one.problem.folder,
        "level": one.problem.level,
        "problem_id": one.problem.number,
        "digest": one.problem.digest,
        "ending": one.ending.value,
        "why": one.why,
        "best": one.best_id,
        "speedup_over": {
            first.value: to_json(one.speedup) if one.speedup is not None else None,
            other.value: to_json(one.over_other) if one.over_other is not None else None,
        },
        "not_measured": one.other_why,
        "kernel_us": one.kernel_us,
        "baseline_us": one.baseline_us,
        "language": one.language,
        "proposer": one.proposer,
        "verdicts": dict(one.verdicts),
        "evaluated": one.evaluated,
        "tokens": one.tokens,
        "dollars": None if one.dollars_unknown else round(one.dollars, 6),
        "minutes": round(one.active_s / 60, 2),
    }
