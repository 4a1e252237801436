"""From the log of a finished run to its lessons, without a model.

An idea is counted with what became of it in the end: a candidate that failed and was repaired counts once, as its repair came
out. Its effect is its speed over the parent that it was tried on, whose interval counts too; of a kernel without a parent, over
the baseline.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernelevo_api.types import Ratio
from kernelevo_searcher.memory.lessons import Context, Failure, Lesson, Origin, RunLessons, check
from kernelevo_searcher.memory.vocabulary import DTYPES, operators_in, techniques_in
from kernelevo_searcher.proposers import ActionKind
from kernelevo_searcher.state import RunState, replay

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kernelevo_api.types import Language, Verdict
    from kernelevo_searcher.candidates import CandidateState
    from kernelevo_searcher.events import Record

__all__ = ["NotFinished", "context_of", "distil"]

_WORD = re.compile(r"[a-z0-9_.]{1,24}")
_BASELINE = Ratio(value=1.0, low=1.0, high=1.0)
_MOST_WORDS = 16
"""Of an architecture, e.g. a processor's vector extensions."""


class NotFinished(Exception):
    """The run has not come to its end, so that what it would teach is not known yet."""


@dataclass(slots=True)
class _Tally:
    tried: int = 0
    faster: int = 0
    slower: int = 0
    repaired: int = 0
    failures: dict[Verdict, int] = field(default_factory=dict)
    gains: list[float] = field(default_factory=list)


def distil(records: Iterable[Record], problem_source: str) -> RunLessons:
    """The lessons of a run.

    Raises:
        NotFinished: it is not.
    """
    state = replay(records)
    if state.finished is None or state.started is None or state.last_time is None:
        raise NotFinished
    tallies: dict[tuple[str, Language | None, bool], _Tally] = defaultdict(_Tally)
    repairs = _repairs(state)
    for candidate in state.candidates.values():
        action = candidate.proposed.action
        if action in {ActionKind.SEED, ActionKind.FIX} or _turned_off(candidate):
            continue
        outcome = _outcome(candidate, repairs)
        if outcome.evaluation is None:
            continue
        for technique in techniques_in(candidate.proposed.idea):
            key = (technique, outcome.evaluation.language, action is ActionKind.TUNE)
            _count(tallies[key], state, candidate, outcome)
    entry = RunLessons(
        origin=Origin(
            run_id=state.started.run_id,
            problem=state.started.problem_digest[:16],
            day=f"{state.last_time:%Y-%m-%d}",
            version=state.started.version,
            evaluated=state.evaluated,
            speedup=_rounded(state.finished.speedup.value) if state.finished.speedup is not None else None,
        ),
        context=context_of(state, problem_source),
        lessons=tuple(
            Lesson(
                technique=technique,
                language=language,
                tuned=tuned,
                tried=tally.tried,
                faster=tally.faster,
                slower=tally.slower,
                repaired=tally.repaired,
                failures=tuple(Failure(verdict=verdict, count=count) for verdict, count in tally.failures.items()),
                gains=tuple(tally.gains),
            )
            for (technique, language, tuned), tally in tallies.items()
            if tally.tried
        ),
    )
    check(entry)
    return entry


def context_of(state: RunState, problem_source: str) -> Context:
    """What a registered problem is like, in words of the vocabulary."""
    assert state.registered is not None and state.connected is not None
    report, device = state.registered.report, state.connected.device
    words = [word for word in device.architecture.lower().split() if _WORD.fullmatch(word)]
    dtypes = {tensor.dtype.removeprefix("torch.") for tensor in (*report.inputs, *report.weights)}
    return Context(
        device=device.kind,
        architecture=" ".join(words[:_MOST_WORDS]),
        operators=operators_in(problem_source),
        dtypes=tuple(dtype for dtype in DTYPES if dtype in dtypes),
        size=int(math.log2(report.compulsory_bytes)) if report.compulsory_bytes > 0 else 0,
    )


def _turned_off(candidate: CandidateState) -> bool:
    """Whether the tuner left something out, rather than tried it."""
    return candidate.proposed.action is ActionKind.TUNE and candidate.proposed.idea.endswith(" off")


def _repairs(state: RunState) -> dict[str, list[CandidateState]]:
    found = defaultdict(list)
    for candidate in state.candidates.values():
        if candidate.proposed.action is ActionKind.FIX and candidate.parent_id is not None:
            found[candidate.parent_id].append(candidate)
    return found


def _outcome(candidate: CandidateState, repairs: dict[str, list[CandidateState]]) -> CandidateState:
    """What an idea came to: itself, or the best of its repairs, theirs included."""
    outcomes = [_outcome(repair, repairs) for repair in repairs.get(candidate.id, ())]
    return max([candidate, *outcomes], key=lambda each: each.low)


def _count(tally: _Tally, state: RunState, candidate: CandidateState, outcome: CandidateState) -> None:
    evaluation, speedup = outcome.evaluation, outcome.speedup
    assert evaluation is not None
    if speedup is None:
        if outcome.failed:
            tally.tried += 1
            tally.failures[evaluation.verdict] = tally.failures.get(evaluation.verdict, 0) + 1
        return
    parent = state.candidates[candidate.parent_id] if candidate.parent_id is not None else None
    over = parent.speedup if parent is not None else _BASELINE
    if over is None or not (over.low > 0 and over.value > 0 and math.isfinite(speedup.value) and speedup.value > 0):
        return
    tally.tried += 1
    tally.repaired += outcome is not candidate
    tally.faster += speedup.low > over.high
    tally.slower += speedup.high < over.low
    tally.gains.append(_rounded(speedup.value / over.value))


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
