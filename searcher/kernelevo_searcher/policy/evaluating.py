"""What is measured next, how thoroughly, and how the run is verified at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelevo_api.types import Effort, Verdict
from kernelevo_searcher.policy.actions import Action, Evaluate, Finish, Verify, Wait
from kernelevo_searcher.policy.stopping import evaluations_left
from kernelevo_searcher.proposers import ActionKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelevo_api.types import Ratio
    from kernelevo_searcher.candidates import CandidateState
    from kernelevo_searcher.policy.actions import Resources
    from kernelevo_searcher.state import RunState

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
    deserving = [candidate for candidate in _deserving(state) if _wanted(candidate, paid_only)]
    if deserving and not _left_to_the_finish(state):
        # The most promising first: what it turns out to be may settle the others.
        return Evaluate(deserving[0].id, Effort.FULL)
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


def _deserving(state: RunState) -> list[CandidateState]:
    """Screened candidates that a full measurement may show to be the best, the highest figure first."""
    to_beat = _to_beat(state)
    found = [
        (-candidate.speedup.value, candidate.order, candidate)
        for candidate in state.candidates.values()
        if candidate.speedup is not None and _deserves_full(state, candidate, to_beat)
    ]
    return [candidate for *_, candidate in sorted(found, key=lambda item: item[:2])]


def _left_to_the_finish(state: RunState) -> bool:
    """Whether a full measurement would inform nothing but the choice of finalists, and there is none to make.

    Nothing more is proposed then, and the finish measures more thoroughly itself. What is on its way is waited for.
    """
    if state.stop is None and evaluations_left(state) > 0:
        return False
    return bool(state.in_flight or waiting(state)) or len(_contenders(state)) <= _most_finalists(state)


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


def _most_finalists(state: RunState) -> int:
    return state.settings.verify or (5 if state.settings.models else 2)


def _contenders(state: RunState) -> list[CandidateState]:
    """The best by full measurement, and what was only screened and may be better; the highest figure first."""
    chosen = _deserving(state)
    if state.best is not None and state.best not in chosen:
        chosen.append(state.best)
    figures = [(candidate.speedup.value, candidate) for candidate in chosen if candidate.speedup is not None]
    return [candidate for _, candidate in sorted(figures, key=lambda item: (-item[0], item[1].order))]


def finalists(state: RunState) -> tuple[str, ...]:
    """The candidates to verify, best first: those that may be the best, then the rest by rank."""
    chosen = {candidate.id: None for candidate in (*_contenders(state), *state.ranked()) if candidate.finalist}
    return tuple(chosen)[: _most_finalists(state)]


def begin_verification(state: RunState) -> Action:
    """Verify the finalists, or end where there are none."""
    chosen = finalists(state)
    return Verify(chosen) if chosen else Finish.FINISH


def verification(state: RunState, resources: Resources) -> Action:
    """The next step of a verification that has begun.

    The first goes alone: the others are then timed a second time only where they reach what it showed.
    """
    assert state.verifying is not None
    chosen = [state.candidates[candidate_id] for candidate_id in state.verifying.candidate_ids]
    for candidate in chosen:
        if Effort.FINAL in candidate.evaluations or state.is_in_flight(candidate.id):
            continue
        if candidate.unevaluable or state.attempts[candidate.id, Effort.FINAL] >= _MOST_FAULTS:
            continue
        leader = verified_best(chosen)
        if state.requests_in_flight >= resources.slots or (leader is None and state.in_flight):
            return Wait.WAIT
        return Evaluate(candidate.id, Effort.FINAL, bound_speedup=_selected_by(leader).low if leader else None)
    if state.in_flight:
        return Wait.WAIT
    winner = verified_best(chosen)
    return _verify_elsewhere(state, resources, winner) if winner is not None else Finish.FINISH


def _verify_elsewhere(state: RunState, resources: Resources, winner: CandidateState) -> Action:
    """The winner on each other kind of device that was asked for, one after the other; then the end."""
    for device in state.settings.verify_on:
        place = winner.id, device
        if place not in state.elsewhere and state.attempts_elsewhere[place] < _MOST_FAULTS:
            evaluation = Evaluate(winner.id, Effort.FINAL, device=device)
            return evaluation if resources.slots > 0 else Wait.WAIT
    return Finish.FINISH


def _selected_by(candidate: CandidateState) -> Ratio:
    """The first timing of a verified candidate, which selects."""
    timing = candidate.evaluations[Effort.FINAL].timing
    assert timing is not None
    assert timing.speedup is not None
    return timing.speedup


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
