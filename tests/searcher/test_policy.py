"""The policy is a pure function that keeps its promises whatever the run has come to."""

from __future__ import annotations

import copy
import random
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from kernelevo_api.types import CheckedOn, DeviceRequirement, Effort, Evaluation, Ratio, Timing, Verdict
from kernelevo_searcher import policy
from kernelevo_searcher.events import (
    CandidateProposed,
    DuplicateSkipped,
    EvaluationFinished,
    EvaluationStarted,
    Event,
    ModelCallFinished,
    ModelCallStarted,
    Paused,
    Record,
    RunFinished,
    RunSettings,
    RunStarted,
    StopDecided,
    VerificationStarted,
)
from kernelevo_searcher.mechanisms import Mechanism, PolicyName
from kernelevo_searcher.models import ModelRole, ModelSettings
from kernelevo_searcher.proposers import ActionKind, ReplyOutcome, Usage
from kernelevo_searcher.state import RunState, replay

MODEL_ACTIONS = frozenset({ActionKind.REWRITE, ActionKind.REFINE, ActionKind.FIX, ActionKind.RESTART})
MODEL = ModelSettings(name="m", label="m")
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def state_of(events: list[Event], run_settings: RunSettings | None = None) -> RunState:
    started = RunStarted(
        run_id="r", version="0", problem_name="p", problem_digest="d", settings=run_settings or RunSettings()
    )
    return replay(
        Record(sequence=number, time=BEGIN + timedelta(seconds=number), event=event)
        for number, event in enumerate([started, *events], start=1)
    )


def evaluation(speedup: float | None, effort: Effort, width: float = 0.02) -> Evaluation:
    if speedup is None:
        return Evaluation(verdict=Verdict.OUTPUT_MISMATCH, effort=effort)
    return Evaluation(
        verdict=Verdict.PASSED,
        effort=effort,
        checked_on=CheckedOn.DEVICE,
        timing=Timing(speedup=Ratio(value=speedup, low=speedup - width, high=speedup + width)),
    )


def candidate(
    number: int,
    speedup: float | None = 1.0,
    *,
    effort: Effort = Effort.FULL,
    parent: str | None = None,
    action: ActionKind = ActionKind.TUNE,
    call: str | None = None,
    done: bool = True,
    width: float = 0.02,
) -> list[Event]:
    name = f"c{number}"
    events: list[Event] = [
        CandidateProposed(
            candidate_id=name,
            source_digest=f"s{number}",
            normal_digest=f"n{number}",
            action=action,
            parent_id=parent,
            call_id=call,
        ),
        EvaluationStarted(request_id=f"q{number}", candidate_id=name, effort=effort),
    ]
    if done:
        events.append(
            EvaluationFinished(
                request_id=f"q{number}", candidate_id=name, evaluation=evaluation(speedup, effort, width)
            )
        )
    return events


def decide(
    state: RunState, *, slots: int = 2, model: bool = False, seed: int = 0, active_s: float = 0.0
) -> policy.Action:
    models = (policy.ModelResource(label="m", actions=MODEL_ACTIONS),) if model else ()
    resources = policy.Resources(slots=slots, models=models, active_s=active_s)
    return policy.decide(state, resources, random.Random(seed))


@st.composite
def histories(draw: st.DrawFn) -> RunState:
    events: list[Event] = []
    for number in range(1, draw(st.integers(min_value=1, max_value=40)) + 1):
        parent = draw(st.none() | st.integers(1, number - 1).map(lambda index: f"c{index}")) if number > 1 else None
        events += candidate(
            number,
            draw(st.none() | st.floats(0.1, 10)),
            effort=draw(st.sampled_from([Effort.SCREEN, Effort.FULL])),
            parent=parent,
            action=draw(st.sampled_from(list(ActionKind))),
            call=draw(st.sampled_from([None, f"m{number}"])),
            done=draw(st.integers(0, 9)) > 0,
        )
    run_settings = RunSettings(
        evaluations=draw(st.none() | st.integers(1, 60)),
        models=(MODEL,),
        target_speedup=draw(st.sampled_from([None, 5.0])),
        policy=draw(st.sampled_from(PolicyName)),
        without=tuple(draw(st.sets(st.sampled_from(Mechanism)))),
    )
    return state_of(events, run_settings)


def _left_out(run_settings: RunSettings) -> set[ActionKind]:
    """Actions that this policy does without."""
    named = {Mechanism.TUNE: ActionKind.TUNE, Mechanism.FIX: ActionKind.FIX, Mechanism.RESTART: ActionKind.RESTART}
    left_out = {action for mechanism, action in named.items() if mechanism in run_settings.without}
    if run_settings.policy is not PolicyName.EVOLVE:
        left_out.add(ActionKind.RESTART)
    if run_settings.policy is PolicyName.INDEPENDENT:
        left_out |= {ActionKind.TUNE, ActionKind.FIX, ActionKind.REFINE}
    return left_out


@given(histories(), st.integers(0, 100), st.booleans(), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_decisions_are_sound_and_repeatable(state: RunState, seed: int, model: bool, slots: int) -> None:
    before = copy.deepcopy(state)
    action = decide(state, slots=slots, model=model, seed=seed)
    assert state == before
    assert action == decide(state, slots=slots, model=model, seed=seed)
    match action:
        case policy.Propose(kind, parent_id, label):
            assert parent_id is None or parent_id in state.candidates
            if kind is ActionKind.TUNE:
                assert parent_id is not None and state.candidates[parent_id].speedup is not None
            else:
                assert model and label == "m"
            if kind is ActionKind.FIX:
                assert parent_id is not None and state.candidates[parent_id].failed
            assert kind not in _left_out(state.settings)
            if state.settings.evaluations is not None:
                assert len(state.candidates) < state.settings.evaluations
        case policy.Evaluate(candidate_id, effort, bound):
            assert state.requests_in_flight < slots
            assert not state.is_in_flight(candidate_id)
            assert effort not in state.candidates[candidate_id].evaluations
            assert bound is None or effort is Effort.SCREEN
        case policy.Wait.WAIT:
            assert state.in_flight or state.calls
        case policy.Stop(reason):
            assert reason


@given(histories())
@settings(max_examples=30, deadline=None)
def test_parents_are_the_first_of_each_family_with_the_published_weights(state: RunState) -> None:
    state.settings = RunSettings()
    weights = policy.parent_weights(state)
    families: dict[str, str] = {}
    for parent in state.ranked():
        families.setdefault(parent.family, parent.id)
    assert [name for name, _ in weights] == list(families.values())[:24]
    lows = [state.candidates[name].low for name, _ in weights]
    assert lows == sorted(lows, reverse=True)
    for rank, (name, weight) in enumerate(weights, start=1):
        assert weight == rank**-1.5 * (1 + state.asked[state.candidates[name].family]) ** -0.5


def test_a_kernel_and_what_the_tuner_made_of_it_are_one_parent() -> None:
    refined = candidate(2, 1.5, parent="c1", action=ActionKind.REFINE, call="m1")
    state = state_of([*candidate(1, 1.0), *refined, *candidate(3, 1.2, parent="c1"), *candidate(4, 1.4, parent="c3")])
    assert [state.candidates[f"c{number}"].family for number in range(1, 5)] == ["c1", "c2", "c1", "c1"]
    assert policy.parent_weights(state) == [("c2", 1.0), ("c4", 2**-1.5)]
    assert policy.parent_weights(state, tuning=True) == [("c2", 1.0), ("c4", 2**-1.5 * 3**-0.5)]
    assert policy.parent_weights(state, {"c4"}) == [("c2", 1.0), ("c3", 2**-1.5)]


def test_calls_in_flight_count_as_children() -> None:
    events = candidate(1, 2.0) + candidate(2, 1.0)
    call = ModelCallStarted(call_id="m1", action=ActionKind.REFINE, model="m", reserved_tokens=10, parent_id="c1")
    weights = dict(policy.parent_weights(state_of([*events, call])))
    assert weights["c1"] == 2**-0.5
    assert weights["c2"] == 2**-1.5


def test_a_loser_is_screened_against_the_best_and_a_winner_is_measured_in_full() -> None:
    waiting = CandidateProposed(
        candidate_id="c2", source_digest="s2", normal_digest="n2", action=ActionKind.TUNE, parent_id="c1"
    )
    best = candidate(1, 1.5)
    assert decide(state_of([*best, waiting])) == policy.Evaluate("c2", Effort.SCREEN, bound_speedup=1.48)
    promising = [*best, *candidate(2, 1.6, effort=Effort.SCREEN)]
    assert decide(state_of(promising)) == policy.Evaluate("c2", Effort.FULL)
    better = [*promising, *candidate(3, 1.9, effort=Effort.SCREEN)]
    assert decide(state_of(better)) == policy.Evaluate("c3", Effort.FULL), "the most promising first"
    unsure = [*best, *candidate(2, 1.2, effort=Effort.SCREEN, width=0.5)]
    assert not isinstance(decide(state_of(unsure)), policy.Evaluate), "a wide interval alone is no promise"
    wide = [*candidate(1, 1.5, width=0.4), *candidate(2, 1.2, effort=Effort.SCREEN, width=0.5)]
    assert decide(state_of(wide)) == policy.Evaluate("c2", Effort.FULL)
    beaten = [*best, *candidate(2, 1.2, effort=Effort.SCREEN)]
    assert decide(state_of(beaten)) == policy.Propose(ActionKind.TUNE, "c1") or isinstance(
        decide(state_of(beaten)), policy.Propose
    )


def test_the_search_stops_for_each_of_its_reasons() -> None:
    def reason(state: RunState, **given_: float) -> str:
        action = decide(state, **given_)  # type: ignore[arg-type]
        assert isinstance(action, policy.Stop), action
        return action.reason

    assert "target" in reason(state_of(candidate(1, 2.0), RunSettings(target_speedup=1.9)))
    assert not isinstance(decide(state_of(candidate(1, 2.0), RunSettings(target_speedup=1.99))), policy.Stop)
    assert "evaluations are used up" in reason(state_of(candidate(1, 2.0), RunSettings(evaluations=1)))
    assert "time" in reason(state_of(candidate(1, 2.0), RunSettings(minutes=1)), active_s=61.0)
    stale = candidate(1, 2.0) + [event for number in range(2, 28) for event in candidate(number, 1.0)]
    assert "nothing improved" in reason(state_of(stale))
    assert "no kernel to start from" in reason(state_of(candidate(1, None)))
    state = state_of(candidate(1, 2.0))
    state.tuned_out.add("c1")
    assert "nothing is left" in reason(state)


def test_near_the_floor_the_search_stops() -> None:
    state = state_of(candidate(1, 2.0))
    timing = Timing(speedup=Ratio(value=2.0, low=1.9, high=2.1), candidate_us=10.0, floor_us=9.6)
    state.candidates["c1"].measured(Effort.FULL, Evaluation(verdict=Verdict.PASSED, timing=timing))
    action = decide(state)
    assert isinstance(action, policy.Stop) and "bandwidth" in action.reason


def test_with_a_model_it_rewrites_until_something_passes_then_refines() -> None:
    nothing = state_of([], RunSettings(models=(MODEL,)))
    assert decide(nothing, model=True) == policy.Propose(ActionKind.REWRITE, None, "m")
    passed = candidate(1, 1.2, action=ActionKind.REWRITE, call="m1")
    assert decide(state_of(passed, RunSettings(models=(MODEL,))), model=True) == policy.Propose(
        ActionKind.REFINE, "c1", "m"
    )


def test_a_failed_child_of_a_model_is_repaired_three_times_at_most() -> None:
    events = candidate(1, None, action=ActionKind.REWRITE, call="m1")
    assert decide(state_of(events, RunSettings(models=(MODEL,))), model=True) == policy.Propose(
        ActionKind.FIX, "c1", "m"
    )
    for number in range(2, 5):
        events += candidate(number, None, action=ActionKind.FIX, parent=f"c{number - 1}", call=f"m{number}")
    action = decide(state_of(events, RunSettings(models=(MODEL,))), model=True)
    assert isinstance(action, policy.Propose) and action.action is not ActionKind.FIX


def test_the_best_few_are_verified() -> None:
    events = [event for number in range(1, 9) for event in candidate(number, 1 + number / 10)]
    assert policy.finalists(state_of(events)) == ("c8", "c7")
    assert policy.finalists(state_of(events, RunSettings(models=(MODEL,)))) == ("c8", "c7", "c6", "c5", "c4")
    assert policy.finalists(state_of(events, RunSettings(verify=1))) == ("c8",)


def test_what_only_the_finish_would_use_is_not_measured_in_full() -> None:
    tuned = [*candidate(1, 1.5), *candidate(2, 1.6, effort=Effort.SCREEN)]
    assert decide(state_of(tuned, RunSettings(evaluations=3))) == policy.Evaluate("c2", Effort.FULL)
    stop = decide(state_of(tuned, RunSettings(evaluations=2)))
    assert isinstance(stop, policy.Stop)
    crowd = [*tuned, *candidate(3, 1.7, effort=Effort.SCREEN), *candidate(4, 1.65, effort=Effort.SCREEN)]
    # Three may be the best, and two are verified.
    assert decide(state_of(crowd, RunSettings(evaluations=4))) == policy.Evaluate("c3", Effort.FULL)
    one_out = [*tuned, *candidate(3, 1.7, effort=Effort.SCREEN, done=False)]
    assert decide(state_of(one_out, RunSettings(evaluations=3))) is policy.Wait.WAIT


def test_the_first_finalist_sets_what_the_others_must_reach() -> None:
    chosen = [*candidate(1, 1.5), *candidate(2, 2.0), StopDecided(reason="enough")]
    begun = [*chosen, VerificationStarted(candidate_ids=("c2", "c1"))]
    assert decide(state_of(begun)) == policy.Evaluate("c2", Effort.FINAL)
    sent = [*begun, EvaluationStarted(request_id="f2", candidate_id="c2", effort=Effort.FINAL)]
    assert decide(state_of(sent)) is policy.Wait.WAIT, "there is room, and nothing to reach yet"
    done = EvaluationFinished(request_id="f2", candidate_id="c2", evaluation=evaluation(2.0, Effort.FINAL, 0.02))
    assert decide(state_of([*sent, done])) == policy.Evaluate("c1", Effort.FINAL, bound_speedup=1.98)


def test_the_winner_is_verified_on_each_other_kind_and_given_up_after_three_faults() -> None:
    here, there = DeviceRequirement(name="a"), DeviceRequirement(name="b")
    asked = RunSettings(verify_on=(here, there))
    won = [*candidate(1, 2.0), StopDecided(reason="enough"), VerificationStarted(candidate_ids=("c1",))]
    won.append(EvaluationStarted(request_id="f", candidate_id="c1", effort=Effort.FINAL))
    won.append(EvaluationFinished(request_id="f", candidate_id="c1", evaluation=evaluation(2.0, Effort.FINAL)))

    def sent(number: int, device: DeviceRequirement) -> EvaluationStarted:
        return EvaluationStarted(request_id=f"e{number}", candidate_id="c1", effort=Effort.FINAL, device=device)

    assert decide(state_of(won, RunSettings())) is policy.Finish.FINISH
    assert decide(state_of(won, asked)) == policy.Evaluate("c1", Effort.FINAL, device=here)
    assert decide(state_of(won, asked), slots=0) is policy.Wait.WAIT
    assert decide(state_of([*won, sent(1, here)], asked)) is policy.Wait.WAIT
    # It says nothing about the kernel here, and the search goes by what was measured here.
    wrong = EvaluationFinished(
        request_id="e1", candidate_id="c1", evaluation=evaluation(None, Effort.FINAL), device=here
    )
    state = state_of([*won, sent(1, here), wrong], asked)
    assert state.candidates["c1"].evaluations[Effort.FINAL].verdict is Verdict.PASSED
    assert decide(state) == policy.Evaluate("c1", Effort.FINAL, device=there)
    fault = Evaluation(verdict=Verdict.EVALUATOR_FAULT)
    events = [*won, sent(1, here), wrong]
    for number in range(2, 5):
        assert decide(state_of(events, asked)) == policy.Evaluate("c1", Effort.FINAL, device=there)
        finished = EvaluationFinished(request_id=f"e{number}", candidate_id="c1", evaluation=fault, device=there)
        events += [sent(number, there), finished]
    assert decide(state_of(events, asked)) is policy.Finish.FINISH
    done = state_of([*events, RunFinished(reason="enough", best_id="c1")], asked)
    (_, found), (_, given_up) = done.verified_elsewhere()
    assert found.speedup is None and found.evaluation is not None and given_up.trouble


def stopped_with(*events: Event) -> RunState:
    return state_of([*events, StopDecided(reason="enough")], RunSettings(models=(MODEL,)))


def proposed(number: int, call: str | None) -> CandidateProposed:
    action = ActionKind.REFINE if call is not None else ActionKind.TUNE
    return CandidateProposed(
        candidate_id=f"c{number}", source_digest=f"s{number}", normal_digest=f"n{number}", action=action, call_id=call
    )


def test_after_the_stop_what_a_model_was_paid_for_is_still_measured() -> None:
    best = candidate(1, 1.5)
    assert decide(stopped_with(*best, proposed(2, "m1")), model=True) == policy.Evaluate("c2", Effort.SCREEN, 1.48)
    promising = candidate(2, 1.6, effort=Effort.SCREEN, call="m1", action=ActionKind.REFINE)
    assert decide(stopped_with(*best, *promising), model=True) == policy.Verify(("c2", "c1"))
    assert decide(stopped_with(*best, proposed(2, None)), model=True) == policy.Verify(("c1",))
    call = ModelCallStarted(call_id="m1", action=ActionKind.REFINE, model="m", reserved_tokens=10, parent_id="c1")
    assert decide(stopped_with(*best, call), model=True) is policy.Wait.WAIT


def test_models_are_chosen_by_role_and_weight() -> None:
    strong = policy.ModelResource(label="strong", actions=MODEL_ACTIONS, role=ModelRole.STRONG)
    cheap = policy.ModelResource(label="cheap", actions=MODEL_ACTIONS, role=ModelRole.CHEAP, weight=3.0)

    def asked(events: list[Event], *models: policy.ModelResource) -> list[str | None]:
        settings_ = RunSettings(models=(ModelSettings(name="strong", label="strong"), MODEL))
        resources = policy.Resources(slots=2, models=models)
        actions = [policy.decide(state_of(events, settings_), resources, random.Random(seed)) for seed in range(200)]
        return [action.model for action in actions if isinstance(action, policy.Propose)]

    assert set(asked([], strong, cheap)) == {"strong"}
    assert set(asked([], cheap)) == {"cheap"}
    failed = candidate(1, None, action=ActionKind.REWRITE, call="m1")
    assert set(asked(failed, strong, cheap)) == {"cheap"}
    passed = candidate(1, 1.2, action=ActionKind.REWRITE, call="m1")
    refined = asked(passed, strong, cheap)
    assert 2 * refined.count("strong") < refined.count("cheap")
    assert "strong" in refined


def test_a_paused_or_refused_model_leaves_its_work_to_the_others() -> None:
    models = tuple(policy.ModelResource(label=name, actions=MODEL_ACTIONS) for name in ("a", "b"))
    resources = policy.Resources(slots=2, models=models)
    one = state_of([Paused(reason="busy", model="a")], RunSettings(models=(MODEL,)))
    assert policy.decide(one, resources, random.Random(0)) == policy.Propose(ActionKind.REWRITE, None, "b")
    both = state_of([Paused(reason="busy", model="a"), Paused(reason="busy", model="b")], RunSettings(models=(MODEL,)))
    assert policy.decide(both, resources, random.Random(0)) is policy.Wait.WAIT


def test_tokens_and_dollars_are_kept_exactly() -> None:
    call = ModelCallStarted(
        call_id="m1", action=ActionKind.REFINE, model="m", reserved_tokens=1000, reserved_dollars=0.5
    )
    settings_ = RunSettings(models=(MODEL,), budget_tokens=5000, budget_dollars=2.0)
    state = state_of([call], settings_)
    assert (state.budget_left, state.dollars_left) == (4000, 1.5)
    usage = Usage(prompt_tokens=100, completion_tokens=50, reasoning_tokens=20, cached_tokens=80)
    state = state_of(
        [call, ModelCallFinished(call_id="m1", outcome=ReplyOutcome.EMPTY, usage=usage, dollars=0.25)], settings_
    )
    assert (state.budget_left, state.dollars_left, state.usage) == (4850, 1.75, usage)
    assert state.spending.rows["refine", "m"].useful == 0
    poor = policy.Resources(
        slots=1, models=(policy.ModelResource(label="m", actions=MODEL_ACTIONS, least_dollars=1.8),)
    )
    action = policy.decide(state, poor, random.Random(0))
    assert action == policy.Stop("the money is used up ($0.2500 of $2)")


def test_a_model_that_repeats_itself_waits_for_news() -> None:
    repeated: list[Event] = [
        DuplicateSkipped(source_digest="s", candidate_id="c1", action=ActionKind.REWRITE, call_id=f"m{number}")
        for number in range(12)
    ]
    measuring = candidate(1, action=ActionKind.REWRITE, call="m0", done=False)
    settings_ = RunSettings(models=(MODEL,))
    assert isinstance(decide(state_of([*measuring, *repeated[:2]], settings_), model=True), policy.Propose)
    assert decide(state_of([*measuring, *repeated[:3]], settings_), model=True) is policy.Wait.WAIT
    stopped = decide(state_of(repeated, settings_), model=True)
    assert stopped == policy.Stop("the last 12 replies held no new candidate")


def test_evaluations_are_left_to_repair_what_a_model_wrote() -> None:
    start = candidate(1, 1.0, action=ActionKind.SEED)
    failed = candidate(2, None, parent="c1", action=ActionKind.REWRITE, call="m1")
    measured = candidate(2, parent="c1", action=ActionKind.REWRITE, call="m1", done=False)

    def decided(events: list[Event], evaluations: int, *, model: bool = True) -> set[str]:
        state = state_of(events, RunSettings(evaluations=evaluations, calls_in_flight=1, models=(MODEL,)))
        actions = (decide(state, slots=2, model=model, seed=seed) for seed in range(20))
        return {action.action.value if isinstance(action, policy.Propose) else str(action) for action in actions}

    asked: list[Event] = [
        ModelCallStarted(call_id="m9", action=ActionKind.REFINE, parent_id="c1", model="m", reserved_tokens=10)
    ]
    # One evaluation is left, and it may have to be a repair: while a reply is under way, is measured, or has failed.
    assert decided(start + asked, 3) == {str(policy.Wait.WAIT)}
    assert decided(start + measured, 3) == {str(policy.Wait.WAIT)}
    assert decided(start + failed, 3) == {"fix"}
    # With more to spend, or nobody to repair it, the search goes on.
    assert decided(start + asked, 4) == {"tune"}
    assert decided(start + measured, 4) == {"rewrite"}
    assert decided(start + failed, 3, model=False) == {"tune"}


FAMILY = [
    *candidate(1, 2.0, action=ActionKind.REFINE, call="m1"),
    *candidate(2, 1.5, parent="c1"),
    *candidate(3, 1.2, parent="c1", action=ActionKind.REFINE, call="m3"),
    ModelCallStarted(call_id="m4", action=ActionKind.REFINE, model="m", reserved_tokens=10, parent_id="c2"),
    ModelCallFinished(call_id="m4", outcome=ReplyOutcome.PROSE, usage=Usage()),
    ModelCallStarted(call_id="m5", action=ActionKind.REFINE, model="m", reserved_tokens=10, parent_id="c1"),
]


def weights_of(**given_: object) -> list[tuple[str, float]]:
    return policy.parent_weights(state_of(FAMILY, RunSettings(models=(MODEL,), **given_)))  # type: ignore[arg-type]


def test_each_part_of_the_parent_rule_can_be_left_out() -> None:
    # Asked about the tuned kernel, and about the kernel itself in a call under way.
    assert weights_of() == [("c1", 3**-0.5), ("c3", 2**-1.5)]
    assert weights_of(without=(Mechanism.RANKS,)) == [("c1", 3**-0.5), ("c3", 1.0)]
    assert weights_of(without=(Mechanism.IN_FLIGHT,)) == [("c1", 2**-0.5), ("c3", 2**-1.5)]
    assert weights_of(without=(Mechanism.CHILDREN,)) == [("c1", 1.0), ("c3", 2**-1.5)]
    assert weights_of(without=(Mechanism.FAMILIES,)) == [("c1", 3**-0.5), ("c2", 2**-1.5 * 3**-0.5), ("c3", 3**-1.5)]


def test_greedy_takes_the_best_and_nothing_else() -> None:
    assert weights_of(policy=PolicyName.GREEDY) == [("c1", 1.0)]
    state = state_of(FAMILY, RunSettings(models=(MODEL,), policy=PolicyName.GREEDY))
    actions = [decide(state, model=True, seed=seed) for seed in range(20)]
    assert {action.parent_id for action in actions if isinstance(action, policy.Propose)} == {"c1"}


def test_independent_samples_have_no_parent() -> None:
    independent = RunSettings(models=(MODEL,), policy=PolicyName.INDEPENDENT)
    failed = candidate(4, None, action=ActionKind.REWRITE, call="m2")
    for events in ([], FAMILY, [*FAMILY, *failed]):
        for seed in range(20):
            assert decide(state_of(events, independent), model=True, seed=seed) == policy.Propose(
                ActionKind.REWRITE, None, "m"
            )


def test_repairs_restarts_and_patience_can_be_left_out() -> None:
    failed = candidate(1, 1.0) + candidate(2, None, action=ActionKind.REFINE, parent="c1", call="m1")

    def actions(events: list[Event], *without: Mechanism) -> set[ActionKind]:
        state = state_of(events, RunSettings(models=(MODEL,), without=without))
        found = [decide(state, model=True, seed=seed) for seed in range(20)]
        return {action.action for action in found if isinstance(action, policy.Propose)}

    assert actions(failed) == {ActionKind.FIX}
    assert ActionKind.FIX not in actions(failed, Mechanism.FIX)
    stale = candidate(1, 2.0) + [
        event
        for number in range(2, 15)
        for event in candidate(number, 1.0, action=ActionKind.REFINE, call=f"m{number}")
    ]
    assert actions(stale) == {ActionKind.RESTART}
    assert actions(stale, Mechanism.RESTART) == {ActionKind.REFINE}
    done = stale + [
        event
        for number in range(15, 30)
        for event in candidate(number, 1.0, action=ActionKind.REFINE, call=f"m{number}")
    ]
    for left_out, ends in (((Mechanism.RESTART,), True), ((Mechanism.RESTART, Mechanism.PATIENCE), False)):
        state = state_of(done, RunSettings(models=(MODEL,), without=left_out))
        assert isinstance(decide(state, model=True), policy.Stop) is ends


def test_without_a_model_every_policy_tunes() -> None:
    for name in PolicyName:
        state = state_of(candidate(1, 2.0), RunSettings(policy=name, without=(Mechanism.TUNE,)))
        assert decide(state) == policy.Propose(ActionKind.TUNE, "c1")
