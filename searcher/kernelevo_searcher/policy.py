"""What to do next: a pure function of the run's state, and of what is random, which is drawn from the generator given.

A fixed schedule rather than a bandit: the seventy-odd calls that a budget buys would teach one little. Seeds first; with a
model rewrite until something passes, then refine and tune in turn, fix and restart by rule; without one, tune.

Parents are drawn from the first 24 valid candidates by the lower bound of their speedup, with weight
`rank^-1.5 * (1 + children + in flight)^-0.5`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelevo_api.types import Effort, Verdict
from kernelevo_searcher.proposers import ActionKind

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from kernelevo_searcher.state import CandidateState, RunState

__all__ = [
    "PARENTS",
    "Action",
    "Evaluate",
    "Finish",
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

PARENTS = 24
_RANK_EXPONENT = -1.5
_FAMILY_EXPONENT = -0.5
_MOST_FAULTS = 3
"""Times a candidate is sent again after faults that are not its own."""
_MOST_FIXES = 3
_LEAST_PATIENCE = 25
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
_MODEL_CALLS_IN_FLIGHT = 2
_USELESS_REPLIES_IN_A_ROW = 12


@dataclass(frozen=True, slots=True)
class Seed:
    """Propose the next kernel that was there before the run."""

    index: int


@dataclass(frozen=True, slots=True)
class Propose:
    """Ask the tuner or a model for a candidate."""

    action: ActionKind
    parent_id: str | None = None


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Send a candidate to an evaluator."""

    candidate_id: str
    effort: Effort
    bound_speedup: float | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """End the search; verification follows."""

    reason: str


@dataclass(frozen=True, slots=True)
class Verify:
    """Begin the verification of the best."""

    candidate_ids: tuple[str, ...]


class Wait(enum.Enum):
    """Nothing to start until something comes back."""

    WAIT = "wait"


class Finish(enum.Enum):
    """The run is over: everything is measured."""

    FINISH = "finish"


Action = Seed | Propose | Evaluate | Stop | Verify | Wait | Finish


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What the policy may use besides what the log says."""

    slots: int
    """Evaluations that may be in flight at once."""
    model_actions: frozenset[ActionKind] = frozenset()
    """What the model's proposer can do; empty without one."""
    seeds: tuple[str, ...] = ()
    """Source digests of the kernels there before the run."""
    least_reservation: int = 1
    """Tokens without which no model call can be made."""
    active_s: float = 0.0
    """Time spent searching so far, by the engine's clock."""


def decide(state: RunState, resources: Resources, rng: random.Random) -> Action:
    """The next thing to do. The caller carries it out and writes the event before it asks again."""
    if state.verifying is not None:
        return _verification(state, resources)
    if state.stop is not None:
        return Wait.WAIT if state.in_flight or state.calls else _verify(state)
    reason = stop_reason(state, resources)
    if reason:
        return Stop(reason)
    evaluation = _next_evaluation(state, resources)
    if evaluation is not None:
        return evaluation
    if _waiting(state) and state.requests_in_flight >= resources.slots:
        return Wait.WAIT
    if state.paused:
        return Wait.WAIT
    proposal = _next_proposal(state, resources, rng)
    if proposal is not None:
        return proposal
    if state.in_flight or state.calls:
        return Wait.WAIT
    return Stop(_exhausted(state, resources))


# Stopping.


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
    tokens_short = bool(resources.model_actions) and state.budget_left < resources.least_reservation
    if tokens_short and settings.evaluations is None and not state.calls:
        # With a number of evaluations asked for, the tuner may use the rest of them.
        return _tokens_used_up(state)
    return _no_improvement(state, resources)


def _tokens_used_up(state: RunState) -> str:
    return f"the tokens are used up ({state.usage.total_tokens} of {state.settings.budget_tokens})"


def _floor_share(candidate: CandidateState) -> float:
    evaluation = candidate.evaluation
    timing = evaluation.timing if evaluation is not None else None
    if timing is None or not timing.floor_us or not timing.candidate_us:
        return 0.0
    return timing.floor_us / timing.candidate_us


def _no_improvement(state: RunState, resources: Resources) -> str:
    if state.best is None and not state.candidates:
        return ""
    settings = state.settings
    since = state.evaluated - (state.improvements[-1][0] if state.improvements else 0)
    if not resources.model_actions:
        patience = settings.patience or max(_LEAST_PATIENCE, (settings.evaluations or 0) // 4)
        return f"nothing improved in {since} evaluations" if since >= patience else ""
    patience = settings.patience or _LEAST_PATIENCE
    made = state.model_evaluated - state.model_evaluated_at_improvement
    tokens = state.usage.total_tokens - state.tokens_at_improvement
    if (made >= patience or tokens >= settings.budget_tokens // 4 > 0) and state.restarts_since_improvement > 0:
        return f"nothing improved in {made} candidates and {tokens} tokens, a restart included"
    return ""


def _exhausted(state: RunState, resources: Resources) -> str:
    if _evaluations_left(state) <= 0:
        return f"the evaluations are used up ({state.settings.evaluations})"
    if state.refused:
        return f"the model's endpoint refuses: {state.refused}"
    if resources.model_actions and state.replies_in_a_row_without_source >= _USELESS_REPLIES_IN_A_ROW:
        return f"the last {state.replies_in_a_row_without_source} replies held no candidate"
    if resources.model_actions and state.budget_left < resources.least_reservation:
        return _tokens_used_up(state)
    if not state.ranked():
        return "no kernel to start from passed, and there is no model to write one"
    return "nothing is left to try"


def _evaluations_left(state: RunState) -> int:
    """Candidates that may still be proposed; replies under way may each become one."""
    if state.settings.evaluations is None:
        return 1_000_000
    proposed = sum(not candidate.unevaluable for candidate in state.candidates.values())
    return state.settings.evaluations - proposed - len(state.calls)


# Evaluating.


def _waiting(state: RunState) -> list[CandidateState]:
    """Candidates of which nothing was measured and nothing is under way, oldest first."""
    return [
        candidate
        for candidate in state.candidates.values()
        if not candidate.evaluations
        and not candidate.unevaluable
        and candidate.faults < _MOST_FAULTS
        and not state.is_in_flight(candidate.id)
    ]


def _next_evaluation(state: RunState, resources: Resources) -> Evaluate | None:
    if state.requests_in_flight >= resources.slots:
        return None
    best = state.best
    for candidate in state.candidates.values():
        if _deserves_full(state, candidate):
            return Evaluate(candidate.id, Effort.FULL)
    for candidate in _waiting(state):
        # What the others are compared with is measured well from the start.
        if best is None or candidate.proposed.action is ActionKind.SEED:
            return Evaluate(candidate.id, Effort.FULL)
        return Evaluate(candidate.id, Effort.SCREEN, bound_speedup=best.low)
    return None


def _deserves_full(state: RunState, candidate: CandidateState) -> bool:
    """A screening whose interval leaves open that it beats the best."""
    screen = candidate.evaluations.get(Effort.SCREEN)
    if screen is None or Effort.FULL in candidate.evaluations or candidate.faults >= _MOST_FAULTS:
        return False
    if candidate.speedup is None or (screen.timing is not None and screen.timing.stopped_at_bound):
        return False
    if candidate.unevaluable or state.is_in_flight(candidate.id):
        return False
    measured = [other.speedup for other in state.candidates.values() if Effort.FULL in other.evaluations]
    best_value = max((ratio.value for ratio in measured if ratio is not None), default=0.0)
    return candidate.speedup.high > best_value


# Proposing.


def _next_proposal(state: RunState, resources: Resources, rng: random.Random) -> Seed | Propose | None:
    if _evaluations_left(state) <= 0 or len(_waiting(state)) > 1:
        return None
    for index, digest in enumerate(resources.seeds):
        if digest not in state.seeds_taken:
            return Seed(index)
    if not state.ranked() and state.in_flight and not resources.model_actions:
        # The seeds are still out: nothing to start from yet.
        return None
    model = _model_proposal(state, resources, rng)
    tune = _tune(state, rng)
    if model is None or tune is None:
        return model or tune
    if len(state.calls) >= _MODEL_CALLS_IN_FLIGHT:
        return tune
    if not state.calls:
        return model
    return tune if rng.random() < _TUNE_SHARE else model


def _model_proposal(state: RunState, resources: Resources, rng: random.Random) -> Propose | None:
    can = resources.model_actions
    if (
        not can
        or state.refused
        or state.budget_left < resources.least_reservation
        or state.replies_in_a_row_without_source >= _USELESS_REPLIES_IN_A_ROW
        or len(state.calls) >= max(_MODEL_CALLS_IN_FLIGHT, resources.slots)
    ):
        return None
    if ActionKind.FIX in can:
        failed = _to_fix(state)
        if failed is not None:
            return Propose(ActionKind.FIX, failed.id)
    made_nothing = not any(candidate.proposed.call_id is not None for candidate in state.ranked())
    if ActionKind.RESTART in can and _restart_is_due(state):
        return Propose(ActionKind.RESTART)
    parent = _draw(state, rng)
    if ActionKind.REWRITE in can and (parent is None or made_nothing):
        return Propose(ActionKind.REWRITE, parent.id if parent is not None else None)
    if ActionKind.REFINE in can and parent is not None:
        return Propose(ActionKind.REFINE, parent.id)
    return None


def _restart_is_due(state: RunState) -> bool:
    """Half the patience is gone without an improvement, and no restart was tried since."""
    made = state.model_evaluated - state.model_evaluated_at_improvement
    tokens = state.usage.total_tokens - state.tokens_at_improvement
    patience = state.settings.patience or _LEAST_PATIENCE
    return state.restarts_since_improvement == 0 and (
        made >= patience // 2 or tokens >= state.settings.budget_tokens // 8 > 0
    )


def _to_fix(state: RunState) -> CandidateState | None:
    """The newest failed child of a model worth another round: few rounds so far, and nobody at it yet."""
    busy = {call.parent_id for call in state.calls.values()}
    for candidate in reversed(state.candidates.values()):
        evaluation = candidate.evaluation
        if (
            candidate.proposed.call_id is not None
            and evaluation is not None
            and evaluation.verdict in _REPAIRABLE
            and candidate.children == 0
            and candidate.id not in busy
            and candidate.id not in state.fixes_given_up
            and _rounds(state, candidate) < _MOST_FIXES
        ):
            return candidate
    return None


def _rounds(state: RunState, candidate: CandidateState) -> int:
    """Repairs that led to this candidate."""
    rounds = 0
    current: CandidateState | None = candidate
    while current is not None and current.proposed.action is ActionKind.FIX:
        rounds += 1
        current = state.candidates.get(current.parent_id or "")
    return rounds


def _tune(state: RunState, rng: random.Random) -> Propose | None:
    parent = _draw(state, rng, without=state.tuned_out)
    return Propose(ActionKind.TUNE, parent.id) if parent is not None else None


def parent_weights(state: RunState, without: frozenset[str] | set[str] = frozenset()) -> list[tuple[str, float]]:
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


def _draw(
    state: RunState, rng: random.Random, without: frozenset[str] | set[str] = frozenset()
) -> CandidateState | None:
    weights = parent_weights(state, without)
    if not weights:
        return None
    (drawn,) = rng.choices([name for name, _ in weights], [weight for _, weight in weights])
    return state.candidates[drawn]


# The end.


def finalists(state: RunState) -> tuple[str, ...]:
    """The candidates to verify, best first."""
    count = state.settings.verify or (5 if state.settings.model else 2)
    return tuple(candidate.id for candidate in state.ranked() if candidate.finalist)[:count]


def _verify(state: RunState) -> Action:
    chosen = finalists(state)
    return Verify(chosen) if chosen else Finish.FINISH


def _verification(state: RunState, resources: Resources) -> Action:
    assert state.verifying is not None
    for candidate_id in state.verifying.candidate_ids:
        candidate = state.candidates[candidate_id]
        if Effort.FINAL in candidate.evaluations or state.is_in_flight(candidate_id):
            continue
        if candidate.unevaluable or state.attempts[candidate_id, Effort.FINAL] >= _MOST_FAULTS:
            continue
        if state.requests_in_flight >= resources.slots:
            return Wait.WAIT
        return Evaluate(candidate_id, Effort.FINAL)
    return Wait.WAIT if state.in_flight else Finish.FINISH


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
