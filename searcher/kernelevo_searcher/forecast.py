"""What is left of a run's budget buys: how many candidates, and what runs out first.

Pure: a function of the run's state and of what a call is thought to cost. Once calls were made, their means replace what was
thought. Rules that end a search sooner (target, bandwidth, no improvement) are not foreseen.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernelevo_searcher.policy.stopping import evaluations_left

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kernelevo_searcher.state import RunState

__all__ = ["CallCost", "Forecast", "Limit", "forecast", "forecast_line"]


class Limit(enum.Enum):
    """What can run out."""

    TOKENS = "tokens"
    DOLLARS = "dollars"
    EVALUATIONS = "evaluations"
    TIME = "time"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCost:
    """What one call of a model is thought to cost."""

    weight: float = 1.0
    """Share of the calls among the models."""
    tokens: int
    """Likely, prompt and reply together."""
    most_tokens: int
    """With the largest reply: what is reserved for it."""
    dollars: float | None = None
    """For the likely tokens; absent where the price is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a budget buys."""

    candidates: Mapping[Limit, int | None] = field(default_factory=dict)
    """By each limit that is set, the candidates until it is reached; `None` where nobody can know yet."""
    least_by_tokens: int | None = None
    """With every reply as large as it may be; absent where the mean was measured, or nothing is asked of a model."""
    calls: int = 0
    """Calls with a reply over which the means were measured; 0 where they are estimates."""
    tokens_per_call: float | None = None
    dollars_per_call: float | None = None

    @property
    def first(self) -> Limit | None:
        """What runs out first, as far as that is known."""
        known = {limit: count for limit, count in self.candidates.items() if count is not None}
        return min(known, key=lambda limit: known[limit], default=None)


def forecast(state: RunState, costs: Sequence[CallCost]) -> Forecast:
    """What is left buys this.

    Args:
        costs: of each model; none where only the tuner proposes, which costs neither tokens nor dollars.
    """
    settings, candidates = state.settings, dict[Limit, int | None]()
    tokens, dollars, useful = _per_call(state, costs)
    if costs:
        candidates[Limit.TOKENS] = _times(state.budget_left, tokens, useful)
    if costs and state.dollars_left is not None:
        candidates[Limit.DOLLARS] = _times(state.dollars_left, dollars, useful)
    if settings.evaluations is not None:
        candidates[Limit.EVALUATIONS] = max(0, evaluations_left(state) + len(state.calls))
    if settings.minutes is not None:
        seconds = state.active_s / state.evaluated if state.evaluated else None
        candidates[Limit.TIME] = _times(settings.minutes * 60 - state.active_s, seconds, 1.0)
    measured = _replies(state) if costs else 0
    most = max((cost.most_tokens for cost in costs), default=0)
    return Forecast(
        candidates=candidates,
        least_by_tokens=_times(state.budget_left, most, 1.0) if costs and not measured else None,
        calls=measured,
        tokens_per_call=tokens,
        dollars_per_call=dollars,
    )


def _per_call(state: RunState, costs: Sequence[CallCost]) -> tuple[float | None, float | None, float]:
    """Tokens, dollars (absent where a price is not known) and candidates of a call: measured, or else by weight."""
    if not costs:
        return None, None, 0.0
    total, replies = state.spending.total, _replies(state)
    if replies:
        dollars = None if total.dollars_unknown else total.dollars / replies
        return total.usage.total_tokens / replies, dollars, total.useful / replies
    weight = sum(cost.weight for cost in costs)
    known = [cost.weight * cost.dollars for cost in costs if cost.dollars is not None]
    return (
        sum(cost.weight * cost.tokens for cost in costs) / weight,
        sum(known) / weight if len(known) == len(costs) else None,
        1.0,
    )


def _replies(state: RunState) -> int:
    return state.spending.total.calls - state.spending.total.failed


def _times(left: float, each: float | None, useful: float) -> int | None:
    """Candidates in what is left; `None` where it is not known what one takes, or none was seen yet."""
    if left <= 0:
        return 0
    return int(left / each * useful) if each and useful else None


def forecast_line(told: Forecast) -> str | None:
    """The forecast in one line for people; None where nothing is known."""
    first = told.first
    if first is None:
        return None
    parts = []
    for limit, count in told.candidates.items():
        least = f", at least {told.least_by_tokens}" if limit is Limit.TOKENS and told.least_by_tokens else ""
        parts.append(f"{limit.value} {count if count is not None else 'not known yet'}{least}")
    line = f"forecast: about {told.candidates[first]} candidates, then the {first.value} {_RUN[first]} out"
    if len(parts) > 1 or told.least_by_tokens:
        line += f" ({' · '.join(parts)})"
    if told.tokens_per_call is not None:
        price = f"${told.dollars_per_call:.4f}" if told.dollars_per_call is not None else "price unknown"
        basis = f"measured over {told.calls}" if told.calls else "estimated"
        line += f"; a call takes about {told.tokens_per_call:,.0f} tokens ({price}), {basis}"
    return line


_RUN = {Limit.TOKENS: "run", Limit.DOLLARS: "run", Limit.EVALUATIONS: "run", Limit.TIME: "runs"}
