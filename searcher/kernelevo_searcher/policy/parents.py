"""Who becomes a parent: the first 24 valid candidates by the lower bound of their speedup, drawn with weight
`rank^-1.5 * (1 + children + in flight)^-0.5`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Set as AbstractSet

    from kernelevo_searcher.state import CandidateState, RunState

__all__ = ["PARENTS", "draw_parent", "parent_weights"]

PARENTS = 24
_RANK_EXPONENT = -1.5
_FAMILY_EXPONENT = -0.5


def parent_weights(state: RunState, without: AbstractSet[str] = frozenset()) -> list[tuple[str, float]]:
    """The candidates that may become parents, best first, and their weights."""
    busy = [call.parent_id for call in state.calls.values()]
    eligible = [candidate for candidate in state.ranked() if candidate.id not in without][:PARENTS]
    return [
        (
            candidate.id,
            rank**_RANK_EXPONENT * (1 + candidate.children + busy.count(candidate.id)) ** _FAMILY_EXPONENT,
        )
        for rank, candidate in enumerate(eligible, start=1)
    ]


def draw_parent(state: RunState, rng: random.Random, without: AbstractSet[str] = frozenset()) -> CandidateState | None:
    """A parent by its weight; None where nothing passed yet."""
    weights = parent_weights(state, without)
    if not weights:
        return None
    (drawn,) = rng.choices([name for name, _ in weights], [weight for _, weight in weights])
    return state.candidates[drawn]
