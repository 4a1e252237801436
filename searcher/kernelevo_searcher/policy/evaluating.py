"""What is measured next, how thoroughly, and how the run is verified at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelevo_api.types import Effort, Verdict
from kernelevo_searcher.policy.actions import Action, Evaluate, Finish, Verify, Wait
from kernelevo_searcher.proposers import ActionKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelevo_api.types import Ratio
    from kernelevo_searcher.policy.actions import Resources
    from kernelevo_searcher.state import CandidateState, RunState

__all__ = ["begin_verification", "finalists", "next_evaluation", "verification", "verified_best", "waiting"]

_MOST_FAULTS = 3
"""Times a candidate is sent again after faults that are not its own."""


def waiting(state: RunState) -> list[CandidateState]:
    """Candidates of which nothing was measured and nothing is under way, oldest first."""
    return [
        candidate
        for candidate in state.candidates.values()
        if not candidate.evaluations
        and not candidate.unevaluable
        and candidate.faults < _MOST_FAULTS
        and not state.is_in_flight(candidate.id)
    ]


def next_evaluation(state: RunState, resources: Resources, *, paid_only: bool = False) -> Evaluate | None:
    """What to measure now: first what may be the best, then what waits; None where nothing does or no slot is free.

    Args:
        paid_only: only of what a model made, which is paid for whether it is measured or not.
    """
    if state.requests_in_flight >= resources.slots:
        return None
    best = state.best
    to_beat = _to_beat(state)
    deserving = [
        (candidate.speedup.value, -candidate.order, candidate.id)
        for candidate in state.candidates.values()
        if candidate.speedup is not None and _deserves_full(state, candidate, to_beat) and _wanted(candidate, paid_only)
    ]
    if deserving:
        # The most promising first: what it turns out to be may settle the others.
        return Evaluate(max(deserving)[2], Effort.FULL)
    for candidate in waiting(state):
        if not _wanted(candidate, paid_only):
            continue
        # What the others are compared with is measured well from the start.
        if best is None or candidate.proposed.action is ActionKind.SEED:
            return Evaluate(candidate.id, Effort.FULL)
        return Evaluate(candidate.id, Effort.SCREEN, bound_speedup=best.low)
    return None


def _wanted(candidate: CandidateState, paid_only: bool) -> bool:
    return not paid_only or candidate.proposed.call_id is not None


def _to_beat(state: RunState) -> Ratio | None:
    """The highest figure that was measured in full."""
    measured = [
        candidate.speedup
        for candidate in state.candidates.values()
        if Effort.FULL in candidate.evaluations and candidate.speedup is not None
    ]
    return max(measured, key=lambda ratio: ratio.value, default=None)


def _deserves_full(state: RunState, candidate: CandidateState, to_beat: Ratio | None) -> bool:
    """A screening that leaves open that it beats the best: its interval reaches the best's figure, and its figure the best's
    interval.

    Either alone would not do on a busy host, whose short screenings have intervals so wide that they reach everything.
    """
    screen = candidate.evaluations.get(Effort.SCREEN)
    if screen is None or Effort.FULL in candidate.evaluations or candidate.faults >= _MOST_FAULTS:
        return False
    if candidate.speedup is None or (screen.timing is not None and screen.timing.stopped_at_bound):
        return False
    if candidate.unevaluable or state.is_in_flight(candidate.id):
        return False
    return to_beat is None or (candidate.speedup.high > to_beat.value and candidate.speedup.value > to_beat.low)


# The end.


def finalists(state: RunState) -> tuple[str, ...]:
    """The candidates to verify, best first."""
    count = state.settings.verify or (5 if state.settings.models else 2)
    return tuple(candidate.id for candidate in state.ranked() if candidate.finalist)[:count]


def begin_verification(state: RunState) -> Action:
    """Verify the finalists, or end where there are none."""
    chosen = finalists(state)
    return Verify(chosen) if chosen else Finish.FINISH


def verification(state: RunState, resources: Resources) -> Action:
    """The next step of a verification that has begun."""
    assert state.verifying is not None
    for candidate_id in state.verifying.candidate_ids:
        candidate = state.candidates[candidate_id]
        if Effort.FINAL in candidate.evaluations or state.is_in_flight(candidate_id):
            continue
        if candidate.unevaluable or state.attempts[candidate_id, Effort.FINAL] >= _MOST_FAULTS:
            continue
        if state.requests_in_flight >= resources.slots:
            return Wait.WAIT
        return Evaluate(candidate_id, Effort.FINAL)
    return Wait.WAIT if state.in_flight else Finish.FINISH


def verified_best(candidates: Sequence[CandidateState]) -> CandidateState | None:
    """The one that the first timing of the verification selects; None where none passed it."""
    passed = [
        (candidate, evaluation.timing.speedup)
        for candidate in candidates
        if (evaluation := candidate.evaluations.get(Effort.FINAL)) is not None
        and evaluation.verdict is Verdict.PASSED
        and evaluation.timing is not None
        and evaluation.timing.speedup is not None
    ]
    return max(passed, key=lambda item: (item[1].low, -item[0].order))[0] if passed else None
