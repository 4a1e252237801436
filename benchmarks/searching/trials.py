"""Mechanisms that were tried beside the policy, each as something that turns its proposals into others.

They are no part of the searcher: docs/decisions has what came of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from kernelevo_searcher.policy import Propose
from kernelevo_searcher.policy.merging import structure
from kernelevo_searcher.policy.parents import draw_parent
from kernelevo_searcher.proposers import ActionKind

if TYPE_CHECKING:
    import random

    from kernelevo_searcher.candidates import CandidateState
    from kernelevo_searcher.state import RunState

Trial = Callable[[Propose, "RunState", "random.Random"], Propose]
_FREE = frozenset({ActionKind.REFINE, ActionKind.RESTART})
"""What the schedule chooses among once something passed; repairs and the first rewrites stand."""
_LEAST_SHARE = 0.5
"""Of the best's lower bound: the best of a niche that is slower gets no calls."""


def niches(proposal: Propose, state: RunState, rng: random.Random, *, share: float = 0.5) -> Propose:
    """A share of the refinements goes to the best of a niche, each niche as likely: kernels that one structure began are one."""
    if proposal.action is not ActionKind.REFINE or rng.random() >= share:
        return proposal
    best: dict[str, CandidateState] = {}
    ranked = state.ranked()
    for candidate in ranked:
        if candidate.low >= _LEAST_SHARE * ranked[0].low:
            best.setdefault(structure(state, candidate), candidate)
    return replace(proposal, parent_id=rng.choice(list(best.values())).id)


def bandit_of_actions(proposal: Propose, state: RunState, rng: random.Random) -> Propose:
    """Thompson's sampling among refining, rewriting and beginning again, by the share of each that became the best."""
    if proposal.action not in _FREE:
        return proposal
    arms = (ActionKind.REFINE, ActionKind.REWRITE, ActionKind.RESTART)
    won = Counter(candidate.proposed.action for candidate in _winners(state))
    action = max(arms, key=lambda arm: _drawn(won[arm], state.actions[arm], rng))
    parent = draw_parent(state, rng) if action is not ActionKind.RESTART else None
    return Propose(action, parent.id if parent is not None else None, proposal.model)


def bandit_of_models(proposal: Propose, state: RunState, rng: random.Random) -> Propose:
    """Thompson's sampling among the models, by the share of each one's replies that became the best."""
    won = Counter(candidate.proposed.proposer for candidate in _winners(state))
    asked: Counter[str] = Counter()
    for row in state.spending.rows.values():
        asked[row.model] += row.calls
    labels = [model.label for model in state.settings.models]
    return replace(proposal, model=max(labels, key=lambda label: _drawn(won[label], asked[label], rng)))


def _winners(state: RunState) -> list[CandidateState]:
    """Candidates of models that became the best."""
    names = dict.fromkeys(name for _, name in state.improvements)
    return [state.candidates[name] for name in names if state.candidates[name].proposed.call_id is not None]


def _drawn(won: int, tried: int, rng: random.Random) -> float:
    return rng.betavariate(1 + won, 1 + max(0, tried - won))
