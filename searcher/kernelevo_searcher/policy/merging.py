"""Now and then, in place of one more change to a kernel: its join with a kernel of another structure.

A structure is what a seed, a rewrite, a restart or a merge began; refining, tuning and repairing keep it. It follows from the
log, with no need to compare sources.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelevo_searcher.policy.actions import Propose
from kernelevo_searcher.policy.models import choose_model
from kernelevo_searcher.policy.parents import PARENTS
from kernelevo_searcher.proposers import ActionKind

if TYPE_CHECKING:
    import random

    from kernelevo_searcher.candidates import CandidateState
    from kernelevo_searcher.policy.actions import ModelResource
    from kernelevo_searcher.state import RunState

__all__ = ["or_merge", "structure"]

_KEEPS_STRUCTURE = frozenset({ActionKind.REFINE, ActionKind.TUNE, ActionKind.FIX})
_LEAST_SHARE = 0.5
"""Of the best's lower bound: what is slower than that has little to give."""


def structure(state: RunState, candidate: CandidateState) -> str:
    """The candidate that began what this one is a variation of."""
    while candidate.proposed.action in _KEEPS_STRUCTURE and candidate.parent_id is not None:
        candidate = state.candidates[candidate.parent_id]
    return candidate.id


def or_merge(proposal: Propose, state: RunState, usable: list[ModelResource], rng: random.Random) -> Propose:
    """The proposal, or a merge in place of a refinement, by the share that the settings give to merges."""
    share = state.settings.merge_share
    if share <= 0 or proposal.action is not ActionKind.REFINE or proposal.parent_id is None or rng.random() >= share:
        return proposal
    other = _partner(state, state.candidates[proposal.parent_id], rng)
    model = choose_model(usable, ActionKind.MERGE, rng)
    if other is None or model is None:
        return proposal
    return Propose(ActionKind.MERGE, proposal.parent_id, model.label, other.id)


def _partner(state: RunState, parent: CandidateState, rng: random.Random) -> CandidateState | None:
    """The best of another structure in the same language that this parent was not joined with yet; the higher, the likelier."""
    joined = {frozenset((each.proposed.parent_id, each.proposed.other_id)) for each in state.candidates.values()}
    joined |= {frozenset((call.parent_id, call.other_id)) for call in state.calls.values()}
    ranked = state.ranked()[:PARENTS]
    found: dict[str, CandidateState] = {}
    for candidate in ranked:
        begun_by = structure(state, candidate)
        if begun_by != structure(state, parent) and candidate.low >= _LEAST_SHARE * ranked[0].low:
            found.setdefault(begun_by, candidate)
    partners = [
        candidate
        for candidate in found.values()
        if _language(candidate) is _language(parent) and frozenset((parent.id, candidate.id)) not in joined
    ]
    if not partners:
        return None
    return rng.choices(partners, [1 / rank for rank in range(1, len(partners) + 1)])[0]


def _language(candidate: CandidateState) -> object:
    return candidate.evaluation.language if candidate.evaluation is not None else candidate.proposed.language
