"""What to do next: a pure function of the run's state, and of what is random, which is drawn from the generator given.

A fixed schedule rather than a bandit: the seventy-odd calls that a budget buys would teach one little. Seeds first; with a
model rewrite until something passes, then refine and tune in turn, fix and restart by rule; without one, tune.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelevo_searcher.policy.actions import (
    Action,
    Evaluate,
    Finish,
    ModelResource,
    Propose,
    Resources,
    Seed,
    Stop,
    Verify,
    Wait,
)
from kernelevo_searcher.policy.evaluating import (
    begin_verification,
    finalists,
    next_evaluation,
    verification,
    verified_best,
    waiting,
)
from kernelevo_searcher.policy.parents import PARENTS, parent_weights
from kernelevo_searcher.policy.proposing import next_proposal
from kernelevo_searcher.policy.stopping import exhausted, stop_reason

if TYPE_CHECKING:
    import random

    from kernelevo_searcher.state import RunState

__all__ = [
    "PARENTS",
    "Action",
    "Evaluate",
    "Finish",
    "ModelResource",
    "Propose",
    "Resources",
    "Seed",
    "Stop",
    "Verify",
    "Wait",
    "decide",
    "finalists",
    "parent_weights",
    "stop_reason",
    "verified_best",
]


def decide(state: RunState, resources: Resources, rng: random.Random) -> Action:
    """The next thing to do. The caller carries it out and writes the event before it asks again."""
    if state.verifying is not None:
        return verification(state, resources)
    if state.stop is not None:
        return _wind_up(state, resources)
    reason = stop_reason(state, resources)
    if reason:
        return Stop(reason)
    evaluation = next_evaluation(state, resources)
    if evaluation is not None:
        return evaluation
    if waiting(state) and state.requests_in_flight >= resources.slots:
        return Wait.WAIT
    if _paused(state, resources):
        return Wait.WAIT
    proposal = next_proposal(state, resources, rng)
    if proposal is not None:
        return proposal
    if state.in_flight or state.calls:
        return Wait.WAIT
    return Stop(exhausted(state, resources))


def _wind_up(state: RunState, resources: Resources) -> Action:
    """After the stop, what a model was paid for is still measured, replies under way included; then the best are verified."""
    evaluation = next_evaluation(state, resources, paid_only=True)
    if evaluation is not None:
        return evaluation
    return Wait.WAIT if state.in_flight or state.calls else begin_verification(state)


def _paused(state: RunState, resources: Resources) -> bool:
    """Whether everything waits: the evaluators are gone, or every model that would be asked."""
    if None in state.paused:
        return True
    asked = [model.label for model in resources.models if model.label not in state.refused]
    return bool(asked) and all(label in state.paused for label in asked)
