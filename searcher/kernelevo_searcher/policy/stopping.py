"""When a search ends, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelevo_searcher.mechanisms import Mechanism, PolicyName
from kernelevo_searcher.policy.models import affordable, says_nothing_new

if TYPE_CHECKING:
    from kernelevo_searcher.candidates import CandidateState
    from kernelevo_searcher.policy.actions import Resources
    from kernelevo_searcher.state import RunState

__all__ = ["LEAST_PATIENCE", "evaluations_left", "exhausted", "restart_is_due", "stop_reason"]

LEAST_PATIENCE = 25


def stop_reason(state: RunState, resources: Resources) -> str:
    """Why the search should end now; empty while it should go on."""
    settings = state.settings
    best = state.best
    if settings.target_speedup is not None and best is not None and best.low >= settings.target_speedup:
        return f"the target of {settings.target_speedup:g}x is reached"
    if settings.minutes is not None and resources.active_s >= settings.minutes * 60:
        return f"the time is used up ({settings.minutes:g} min)"
    if best is not None and _floor_share(best) >= settings.floor_share:
        return f"the best runs at {_floor_share(best):.0%} of the memory bandwidth that was measured here"
    if resources.models and settings.evaluations is None and not state.calls and not affordable(state, resources):
        # With a number of evaluations asked for, the tuner may use the rest of them.
        return _budget_used_up(state)
    return _no_improvement(state, resources)


def _budget_used_up(state: RunState) -> str:
    settings, total = state.settings, state.spending.total
    if state.budget_left > 0 and settings.budget_dollars is not None:
        dollars_left = state.dollars_left or 0.0
        if (
            settings.budget_dollars
            and dollars_left / settings.budget_dollars < state.budget_left / settings.budget_tokens
        ):
            return f"the money is used up (${total.dollars:.4f} of ${settings.budget_dollars:g})"
    return f"the tokens are used up ({state.usage.total_tokens} of {settings.budget_tokens})"


def _floor_share(candidate: CandidateState) -> float:
    evaluation = candidate.evaluation
    timing = evaluation.timing if evaluation is not None else None
    if timing is None or not timing.floor_us or not timing.candidate_us:
        return 0.0
    return timing.floor_us / timing.candidate_us


def _no_improvement(state: RunState, resources: Resources) -> str:
    if (state.best is None and not state.candidates) or Mechanism.PATIENCE in state.settings.without:
        return ""
    settings = state.settings
    since = state.evaluated - (state.improvements[-1][0] if state.improvements else 0)
    if not resources.models:
        patience = settings.patience or max(LEAST_PATIENCE, (settings.evaluations or 0) // 4)
        return f"nothing improved in {since} evaluations" if since >= patience else ""
    patience = settings.patience or LEAST_PATIENCE
    made = state.model_evaluated - state.model_evaluated_at_improvement
    tokens = state.usage.total_tokens - state.tokens_at_improvement
    restarted = state.restarts_since_improvement > 0 or not _restarts(state)
    if (made >= patience or tokens >= settings.budget_tokens // 4 > 0) and restarted:
        told = ", a restart included" if state.restarts_since_improvement else ""
        return f"nothing improved in {made} candidates and {tokens} tokens{told}"
    return ""


def _restarts(state: RunState) -> bool:
    """Whether this policy begins again at all."""
    return state.settings.policy is PolicyName.EVOLVE and Mechanism.RESTART not in state.settings.without


def restart_is_due(state: RunState) -> bool:
    """Half the patience is gone without an improvement, and no restart was tried since."""
    if not _restarts(state):
        return False
    made = state.model_evaluated - state.model_evaluated_at_improvement
    tokens = state.usage.total_tokens - state.tokens_at_improvement
    patience = state.settings.patience or LEAST_PATIENCE
    return state.restarts_since_improvement == 0 and (
        made >= patience // 2 or tokens >= state.settings.budget_tokens // 8 > 0
    )


def exhausted(state: RunState, resources: Resources) -> str:
    """Why nothing can be done any more."""
    if evaluations_left(state) <= 0:
        return f"the evaluations are used up ({state.settings.evaluations})"
    if resources.models and all(model.label in state.refused for model in resources.models):
        reasons = "; ".join(dict.fromkeys(state.refused.values()))
        return f"the model's endpoint refuses: {reasons}"
    if resources.models and says_nothing_new(state):
        return f"the last {state.replies_in_a_row_without_news} replies held no new candidate"
    if resources.models and not affordable(state, resources):
        return _budget_used_up(state)
    if not state.ranked():
        return "no kernel to start from passed, and there is no model to write one"
    return "nothing is left to try"


def evaluations_left(state: RunState) -> int:
    """Candidates that may still be proposed; replies under way may each become one."""
    if state.settings.evaluations is None:
        return 1_000_000
    proposed = sum(not candidate.unevaluable for candidate in state.candidates.values())
    return state.settings.evaluations - proposed - len(state.calls)
