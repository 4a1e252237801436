"""Which model is asked: by role, then by weight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelevo_searcher.mechanisms import Mechanism
from kernelevo_searcher.models import ModelRole
from kernelevo_searcher.proposers import ActionKind

if TYPE_CHECKING:
    import random

    from kernelevo_searcher.policy.actions import ModelResource, Resources
    from kernelevo_searcher.state import RunState

__all__ = ["REPEATS_BEFORE_WAITING", "affordable", "choose_model", "says_nothing_new", "usable_models"]

_USELESS_REPLIES_IN_A_ROW = 12
REPEATS_BEFORE_WAITING = 3
"""Replies in a row without anything new after which models wait for what is being measured."""
_WANTED = {
    ActionKind.REWRITE: ModelRole.STRONG,
    ActionKind.MERGE: ModelRole.STRONG,
    ActionKind.RESTART: ModelRole.STRONG,
    ActionKind.FIX: ModelRole.CHEAP,
}
"""`REFINE` is anybody's."""


def says_nothing_new(state: RunState) -> bool:
    """Whether models have repeated themselves for so long that no more is paid for it."""
    if Mechanism.PATIENCE in state.settings.without:
        return False
    return state.replies_in_a_row_without_news >= _USELESS_REPLIES_IN_A_ROW


def affordable(state: RunState, resources: Resources) -> list[ModelResource]:
    """The models that what is left of the budget pays a call of."""
    dollars = state.dollars_left
    return [
        model
        for model in resources.models
        if state.budget_left >= model.least_tokens and (dollars is None or dollars >= max(model.least_dollars, 1e-9))
    ]


def usable_models(state: RunState, resources: Resources) -> list[ModelResource]:
    """The models that may be asked now."""
    return [
        model
        for model in affordable(state, resources)
        if model.label not in state.refused and model.label not in state.paused
    ]


def choose_model(usable: list[ModelResource], action: ActionKind, rng: random.Random) -> ModelResource | None:
    """One for this action; None where none can."""
    able = [model for model in usable if action in model.actions]
    wanted = _WANTED.get(action)
    if wanted is not None:
        able = [model for model in able if model.role in (wanted, ModelRole.ANY)] or able
    if len(able) < 2:
        return able[0] if able else None
    return rng.choices(able, [model.weight for model in able])[0]
