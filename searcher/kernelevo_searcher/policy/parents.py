"""Who becomes a parent: the first 24 valid candidates by the lower bound of their speedup, drawn with weight
`rank^-1.5 * (1 + asked + in flight)^-0.5`. Greedy takes the first.

A kernel and what the tuner made of it are one family, which has one place among the 24: its best member. What models were asked
about any of them counts for all, and so does what the tuner did.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kernelevo_searcher.mechanisms import Mechanism, PolicyName

if TYPE_CHECKING:
    import random
    from collections.abc import Set as AbstractSet

    from kernelevo_searcher.candidates import CandidateState
    from kernelevo_searcher.state import RunState

__all__ = ["PARENTS", "draw_parent", "parent_weights"]

PARENTS = 24
_RANK_EXPONENT = -1.5
_FAMILY_EXPONENT = -0.5


def parent_weights(
    state: RunState, without: AbstractSet[str] = frozenset(), *, tuning: bool = False
) -> list[tuple[str, float]]:
    """The candidates that may become parents, best first, and their weights.

    Args:
        without: candidates that may not.
        tuning: of the tuner, rather than of a model.
    """
    left_out = state.settings.without
    eligible = [candidate for candidate in state.ranked() if candidate.id not in without]
    if Mechanism.FAMILIES not in left_out:
        best: dict[str, CandidateState] = {}
        for candidate in eligible:
            best.setdefault(candidate.family, candidate)
        eligible = list(best.values())
    eligible = eligible[:PARENTS]
    if state.settings.policy is PolicyName.GREEDY:
        return [(candidate.id, 1.0) for candidate in eligible[:1]]
    asked = _asked(state, tuning=tuning)
    weights = []
    for rank, candidate in enumerate(eligible, start=1):
        weight = rank**_RANK_EXPONENT if Mechanism.RANKS not in left_out else 1.0
        if Mechanism.CHILDREN not in left_out:
            weight *= (1 + asked[candidate.family]) ** _FAMILY_EXPONENT
        weights.append((candidate.id, weight))
    return weights


def _asked(state: RunState, *, tuning: bool) -> Counter[str]:
    """How often each family was asked for a child, by its first member; calls that are under way included."""
    if tuning:
        return state.tuned
    asked = Counter(state.asked)
    if Mechanism.IN_FLIGHT not in state.settings.without:
        asked.update(state.candidates[call.parent_id].family for call in state.calls.values() if call.parent_id)
    return asked


def draw_parent(
    state: RunState, rng: random.Random, without: AbstractSet[str] = frozenset(), *, tuning: bool = False
) -> CandidateState | None:
    """A parent by its weight; None where nothing passed yet."""
    weights = parent_weights(state, without, tuning=tuning)
    if not weights:
        return None
    (drawn,) = rng.choices([name for name, _ in weights], [weight for _, weight in weights])
    return state.candidates[drawn]
