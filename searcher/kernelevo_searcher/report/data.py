"""What a report shows, read from a run's log. Plain values only: how it looks is the templates' business."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelevo_api.types import Effort, Evaluation, Ratio, Verdict
from kernelevo_searcher.candidates import CandidateState, elsewhere_line, is_ours, proves_speedup, summary_of
from kernelevo_searcher.events import EvaluationFinished, ModelCallFinished, Record
from kernelevo_searcher.state import RunState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kernelevo_searcher.spending import SpendingRow

__all__ = ["Finalist", "Point", "ReportData", "Row", "Step", "read_report"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One candidate on the charts."""

    candidate_id: str
    evaluations: int
    """Candidates measured up to and including this one."""
    tokens: int
    """Tokens charged by then."""
    action: str
    idea: str
    outcome: str
    speedup: Ratio | None
    """Absent where it failed or was not timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The best speedup from some moment on."""

    evaluations: int
    tokens: int
    speedup: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One candidate in the table and in the tree."""

    id: str
    order: int
    parent_id: str | None
    action: str
    idea: str
    proposer: str
    language: str
    verdict: str
    outcome: str
    speedup: Ratio | None
    candidate_us: float | None
    passed: bool
    source: str
    parameters: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalist:
    """One candidate of the final verification."""

    id: str
    outcome: str
    first: Ratio | None
    second: Ratio | None
    candidate_us: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    """Everything on the page."""

    state: RunState
    reference: str
    best: CandidateState | None
    best_source: str
    best_evaluation: Evaluation | None
    """Of the most thorough effort there is."""
    headline: Ratio | None
    verified: bool
    """The headline was measured anew at the end of the run."""
    proved: bool
    """The whole interval of the headline lies above 1."""
    points: tuple[Point, ...]
    steps: tuple[Step, ...]
    rows: tuple[Row, ...]
    ancestry: tuple[Row, ...]
    """From the first ancestor of the best to the best itself."""
    verdicts: tuple[tuple[str, int], ...]
    finalists: tuple[Finalist, ...]
    elsewhere: tuple[str, ...]
    """What came of verifying the winner on other kinds of device, a sentence each."""
    calls: tuple[SpendingRow, ...]
    outcomes: tuple[tuple[str, int], ...]
    """What became of the replies."""


def read_report(records: Iterable[Record], text: Callable[[str], str]) -> ReportData:
    """Fold the log into what the page shows. `text` finds a text by its digest and raises `KeyError` where there is none."""
    state = RunState()
    first_seen: dict[str, tuple[int, int]] = {}
    steps: list[Step] = []
    outcomes: Counter[str] = Counter()
    for record in records:
        state.apply(record)
        event = record.event
        if isinstance(event, ModelCallFinished):
            outcomes[event.outcome.value] += 1
        elif isinstance(event, EvaluationFinished) and not is_ours(event.evaluation):
            tokens = state.usage.total_tokens
            first_seen.setdefault(event.candidate_id, (state.evaluated, tokens))
            best = state.best
            if best is not None and best.speedup is not None and (not steps or steps[-1].speedup != best.speedup.value):
                steps.append(Step(evaluations=state.evaluated, tokens=tokens, speedup=best.speedup.value))
    texts = _forgiving(text)
    rows = {candidate.id: _row(candidate, texts) for candidate in state.candidates.values()}
    points = tuple(
        Point(
            candidate_id=row.id,
            evaluations=first_seen[row.id][0],
            tokens=first_seen[row.id][1],
            action=row.action,
            idea=row.idea,
            outcome=row.outcome,
            speedup=row.speedup,
        )
        for row in rows.values()
        if row.id in first_seen
    )
    verified = state.verified
    confirmed = verified is not None and verified.best_id is not None and verified.speedup is not None
    best = state.candidates.get(verified.best_id) if confirmed and verified and verified.best_id else state.best
    headline = verified.speedup if confirmed and verified else (best.speedup if best is not None else None)
    verdicts = Counter(row.verdict for row in rows.values() if row.id in first_seen)
    return ReportData(
        state=state,
        reference=texts(state.started.problem_digest) if state.started is not None else "",
        best=best,
        best_source=texts(best.proposed.source_digest) if best is not None else "",
        best_evaluation=_most_thorough(best),
        headline=headline,
        verified=confirmed,
        proved=proves_speedup(headline),
        points=points,
        steps=tuple(steps),
        rows=tuple(rows.values()),
        ancestry=_ancestry(rows, best.id if best is not None else None),
        verdicts=tuple(verdicts.most_common()),
        finalists=tuple(_finalist(state.candidates[id_]) for id_ in state.verifying.candidate_ids)
        if state.verifying
        else (),
        elsewhere=tuple(elsewhere_line(device, found) for device, found in state.verified_elsewhere()),
        calls=tuple(state.spending.rows.values()),
        outcomes=tuple(outcomes.most_common()),
    )


def _forgiving(text: Callable[[str], str]) -> Callable[[str], str]:
    def find(digest: str) -> str:
        try:
            return text(digest)
        except KeyError:
            return ""

    return find


def _row(candidate: CandidateState, text: Callable[[str], str]) -> Row:
    proposed, evaluation = candidate.proposed, candidate.evaluation
    if evaluation is not None:
        verdict = evaluation.verdict.value
    elif candidate.unevaluable:
        verdict = "not evaluable"
    else:
        verdict = "not evaluated"
    language = (evaluation.language if evaluation is not None else None) or proposed.language
    return Row(
        id=proposed.candidate_id,
        order=candidate.order,
        parent_id=proposed.parent_id,
        action=proposed.action.value,
        idea=proposed.idea,
        proposer=proposed.proposer,
        language=language.value if language is not None else "",
        verdict=verdict,
        outcome=candidate.unevaluable or summary_of(evaluation),
        speedup=candidate.speedup,
        candidate_us=evaluation.timing.candidate_us
        if evaluation is not None and evaluation.timing is not None
        else None,
        passed=evaluation is not None and evaluation.verdict is Verdict.PASSED,
        source=text(proposed.source_digest),
        parameters=", ".join(f"{parameter.name} = {parameter.value}" for parameter in proposed.parameters),
    )


def _ancestry(rows: dict[str, Row], best_id: str | None) -> tuple[Row, ...]:
    chain: list[Row] = []
    at = best_id
    while at is not None and at in rows and rows[at] not in chain:
        chain.append(rows[at])
        at = rows[at].parent_id
    return tuple(reversed(chain))


def _most_thorough(candidate: CandidateState | None) -> Evaluation | None:
    if candidate is None:
        return None
    return candidate.evaluations.get(Effort.FINAL) or candidate.evaluation


def _finalist(candidate: CandidateState) -> Finalist:
    evaluation = candidate.evaluations.get(Effort.FINAL)
    timing = evaluation.timing if evaluation is not None else None
    return Finalist(
        id=candidate.id,
        outcome=evaluation.verdict.value if evaluation is not None else "not verified",
        first=timing.speedup if timing is not None else None,
        second=timing.confirmation if timing is not None else None,
        candidate_us=timing.candidate_us if timing is not None else None,
    )
