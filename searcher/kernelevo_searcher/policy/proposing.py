"""What is proposed next: seeds, then by a fixed schedule what the tuner or a model does to which parent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelevo_api.types import Verdict
from kernelevo_searcher.mechanisms import Mechanism, PolicyName
from kernelevo_searcher.policy.actions import ModelResource, Propose, Resources, Seed
from kernelevo_searcher.policy.evaluating import waiting
from kernelevo_searcher.policy.merging import or_merge
from kernelevo_searcher.policy.models import (
    REPEATS_BEFORE_WAITING,
    choose_model,
    says_nothing_new,
    usable_models,
)
from kernelevo_searcher.policy.parents import draw_parent
from kernelevo_searcher.policy.stopping import evaluations_left, restart_is_due
from kernelevo_searcher.proposers import ActionKind

if TYPE_CHECKING:
    import random

    from kernelevo_searcher.candidates import CandidateState
    from kernelevo_searcher.state import RunState

__all__ = ["next_proposal"]

_MOST_FIXES = 3
_TUNE_SHARE = 0.5
"""With a model, the share of proposals left to the tuner once something passed; it costs no tokens, but evaluations."""
_REPAIRABLE = frozenset(
    {
        Verdict.COMPILE_ERROR,
        Verdict.LOAD_ERROR,
        Verdict.RUNTIME_ERROR,
        Verdict.OUTPUT_MISMATCH,
        Verdict.WRONG_INTERFACE,
        Verdict.NONDETERMINISTIC,
        Verdict.INPUT_MUTATED,
        Verdict.NOT_THE_LANGUAGE,
        Verdict.CRASHED,
        Verdict.OUT_OF_MEMORY,
        Verdict.TIMEOUT,
    }
)


def next_proposal(state: RunState, resources: Resources, rng: random.Random) -> Seed | Propose | None:
    """What to propose now; None where nothing can be, or enough waits to be evaluated."""
    if evaluations_left(state) <= 0 or len(waiting(state)) > 1:
        return None
    for index, digest in enumerate(resources.seeds):
        if digest not in state.seeds_taken:
            return Seed(index)
    if not state.ranked() and state.in_flight and not resources.models:
        # The seeds are still out: nothing to start from yet.
        return None
    model = _model_proposal(state, resources, rng)
    if _spoken_for_by_repairs(state) and (model is None or model.action is not ActionKind.FIX):
        return None
    tune = _tune(state, rng) if resources.tuning else None
    if model is None or tune is None:
        return model or tune
    if len(state.calls) >= state.settings.calls_in_flight:
        return tune
    if not state.calls:
        return model
    return tune if rng.random() < _TUNE_SHARE else model


def _model_proposal(state: RunState, resources: Resources, rng: random.Random) -> Propose | None:
    usable = usable_models(state, resources)
    if (
        not usable
        or says_nothing_new(state)
        # Asked the same, it says the same: what is being measured may change the question.
        or (state.replies_in_a_row_without_news >= REPEATS_BEFORE_WAITING and _news_is_due(state))
        or len(state.calls) >= _most_calls(state, resources)
    ):
        return None
    for action, parent_id in _wishes(state, usable, rng):
        model = choose_model(usable, action, rng)
        if model is not None:
            return or_merge(Propose(action, parent_id, model.label), state, usable, rng)
    return None


def _most_calls(state: RunState, resources: Resources) -> int:
    return resources.calls if resources.calls is not None else max(state.settings.calls_in_flight, resources.slots)


def _news_is_due(state: RunState) -> bool:
    """Whether something that is not merely tuned is being measured."""
    measured = (state.candidates[started.candidate_id] for started in state.in_flight.values())
    return any(candidate.proposed.action is not ActionKind.TUNE for candidate in measured)


def _wishes(state: RunState, usable: list[ModelResource], rng: random.Random) -> list[tuple[ActionKind, str | None]]:
    """What a model should do, most wanted first, and to whom."""
    if state.settings.policy is PolicyName.INDEPENDENT:
        return [(ActionKind.REWRITE, None)]
    wishes: list[tuple[ActionKind, str | None]] = []
    failed = _to_fix(state)
    if failed:
        wishes.append((ActionKind.FIX, failed[0].id))
    if restart_is_due(state):
        wishes.append((ActionKind.RESTART, None))
    parent = draw_parent(state, rng)
    made_nothing = not any(candidate.proposed.call_id is not None for candidate in state.ranked())
    if parent is None or made_nothing:
        wishes.append((ActionKind.REWRITE, parent.id if parent is not None else None))
    if parent is not None:
        wishes.append((ActionKind.REFINE, parent.id))
    return wishes


def _repairs(state: RunState) -> bool:
    """Whether this policy repairs at all."""
    return state.settings.policy is not PolicyName.INDEPENDENT and Mechanism.FIX not in state.settings.without


def _spoken_for_by_repairs(state: RunState) -> bool:
    """Whether what a model wrote is still on its way, and may need every evaluation that is left for its repair.

    It is paid for, and worth nothing if it fails when no evaluation is left to repair it.
    """
    if state.settings.evaluations is None or not _repairs(state):
        return False
    unmeasured = {candidate.id for candidate in waiting(state)}
    coming = len(state.calls) + sum(
        candidate.proposed.call_id is not None
        and not candidate.evaluations
        and (candidate.id in unmeasured or state.is_in_flight(candidate.id))
        for candidate in state.candidates.values()
    )
    return 0 < coming >= evaluations_left(state)


def _to_fix(state: RunState) -> list[CandidateState]:
    """Failed children of a model worth another round: few rounds so far, and nobody at it yet; the newest first."""
    if not _repairs(state):
        return []
    busy = {call.parent_id for call in state.calls.values()}
    return [
        candidate
        for candidate in reversed(state.candidates.values())
        if candidate.proposed.call_id is not None
        and candidate.evaluation is not None
        and candidate.evaluation.verdict in _REPAIRABLE
        and candidate.children == 0
        and candidate.id not in busy
        and candidate.id not in state.fixes_given_up
        and _rounds(state, candidate) < _MOST_FIXES
    ]


def _rounds(state: RunState, candidate: CandidateState) -> int:
    """Repairs that led to this candidate."""
    rounds = 0
    current: CandidateState | None = candidate
    while current is not None and current.proposed.action is ActionKind.FIX:
        rounds += 1
        current = state.candidates.get(current.parent_id or "")
    return rounds


def _tune(state: RunState, rng: random.Random) -> Propose | None:
    # Without a model there is nothing else to do, whatever the policy.
    if state.settings.models and (
        Mechanism.TUNE in state.settings.without or state.settings.policy is PolicyName.INDEPENDENT
    ):
        return None
    parent = draw_parent(state, rng, without=state.tuned_out, tuning=True)
    return Propose(ActionKind.TUNE, parent.id) if parent is not None else None
