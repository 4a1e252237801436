"""Whole runs against a scripted evaluator: what is found, what is written, and what happens when things go wrong."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.searcher.scripted_evaluator import KERNEL, PROBLEM, ScriptedEvaluator, landscape
from tests.searcher.scripted_proposer import COST, SCRIPTED, ScriptedProposer

from kernelevo_api.errors import ContractViolation, ProblemRefused, TooLarge, Unreachable
from kernelevo_api.pool import Endpoint, EvaluatorPool, NoEvaluator, PoolSettings
from kernelevo_api.types import Effort, Problem, Seed
from kernelevo_searcher.best import best_kernel
from kernelevo_searcher.drain import Drain
from kernelevo_searcher.engine import Engine, start_events
from kernelevo_searcher.events import (
    DuplicateSkipped,
    EvaluationFailed,
    EvaluationFinished,
    EvaluationStarted,
    EvaluatorChanged,
    Event,
    ModelCallFailed,
    Paused,
    Record,
    Resumed,
    RunSettings,
)
from kernelevo_searcher.mechanisms import PolicyName
from kernelevo_searcher.proposers import EndpointUnreachable, Proposal, ProposerRefused, ReplyOutcome, Usage
from kernelevo_searcher.state import RunState, replay
from kernelevo_searcher.store import RunStore, read_records

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


async def run(
    folder: Path,
    *evaluators: ScriptedEvaluator,
    start: tuple[str, ...] = (KERNEL,),
    proposer: ScriptedProposer | None = None,
    **settings: Any,
) -> RunState:
    endpoints = [Endpoint(name=f"e{number}", transport=item) for number, item in enumerate(evaluators)]
    event, texts = start_events(
        version="0",
        problem=Problem(source=PROBLEM, name="p"),
        settings=RunSettings(**{"evaluations": 25, "models": (SCRIPTED,) if proposer else (), **settings}),
        start=[(f"k{number}", source) for number, source in enumerate(start)],
    )
    with RunStore.create(folder) as store:
        store.append(event, texts=texts)
        pool = EvaluatorPool(endpoints, settings=PoolSettings(probe_s=0.01, rest_s=0.01))
        state = await Engine(store, pool, {"scripted": proposer} if proposer else None).run()
    assert replay(read_records(folder)) == state
    return state


async def test_a_tuned_run_finds_most_of_the_gain(tmp_path: Path) -> None:
    evaluator = ScriptedEvaluator()
    state = await run(tmp_path, evaluator)
    best = best_kernel(tmp_path)
    assert best is not None and best.verified and state.finished is not None
    true = landscape(best.source)
    assert true is not None and true > 1.8
    assert best.speedup is not None and best.speedup.low <= true * 1.01 and best.speedup.high >= true * 0.99
    assert state.evaluated == 25
    assert best.source.startswith("# Found by KernelEvo") and best.source.endswith(KERNEL[-30:])
    assert state.finished.best_id is not None
    final = state.candidates[state.finished.best_id].evaluations[Effort.FINAL]
    assert (
        f"evaluation {final.evaluation_id}" in best.source and "made from the problem, your own kernel;" in best.source
    )
    compile(best.source, "best.py", "exec")


async def test_independent_samples_know_of_no_other(tmp_path: Path) -> None:
    proposer = ScriptedProposer()
    await run(tmp_path, ScriptedEvaluator(), proposer=proposer, evaluations=8, policy=PolicyName.INDEPENDENT)
    assert len(proposer.requests) > 4
    assert all(not (request.parent or request.tried or request.examples) for request in proposer.requests)


async def test_the_second_timing_is_reported(tmp_path: Path) -> None:
    state = await run(tmp_path, ScriptedEvaluator())
    assert state.finished is not None and state.finished.best_id is not None
    timing = state.candidates[state.finished.best_id].evaluations[Effort.FINAL].timing
    assert timing is not None and state.finished.speedup == timing.confirmation != timing.speedup


async def test_equal_seeds_and_replies_give_equal_logs(tmp_path: Path) -> None:
    def essence(folder: Path) -> list[Any]:
        return [
            (type(record.event).__name__, getattr(record.event, "source_digest", None))
            for record in read_records(folder)
        ]

    await run(tmp_path / "a", ScriptedEvaluator(), evaluations=12)
    await run(tmp_path / "b", ScriptedEvaluator(), evaluations=12)
    await run(tmp_path / "c", ScriptedEvaluator(), evaluations=12, seed=9)
    assert [kind for kind, _ in essence(tmp_path / "a")][:8] == [kind for kind, _ in essence(tmp_path / "b")][:8]
    assert essence(tmp_path / "a") != essence(tmp_path / "c")


async def test_lanes_are_kept_busy_and_not_flooded(tmp_path: Path) -> None:
    evaluator = ScriptedEvaluator(seconds=0.01, lanes=3)
    await run(tmp_path, evaluator, evaluations=30)
    assert evaluator.most_at_once == 3
    in_flight = most = 0
    for record in read_records(tmp_path):
        in_flight += isinstance(record.event, EvaluationStarted)
        in_flight -= isinstance(record.event, EvaluationFinished)
        most = max(most, in_flight)
    assert 3 < most <= 6


async def test_several_evaluators_share_the_work(tmp_path: Path) -> None:
    one, two = ScriptedEvaluator(seconds=0.01), ScriptedEvaluator(seconds=0.01)
    await run(tmp_path, one, two)
    assert min(len(one.requests), len(two.requests)) > 5


async def test_another_kind_of_device_is_left_out(tmp_path: Path) -> None:
    one, two = ScriptedEvaluator(), ScriptedEvaluator()
    two.device = "another"
    await run(tmp_path, one, two, evaluations=6)
    assert not two.requests


async def test_an_evaluator_that_goes_away_is_replaced_under_the_same_request_id(tmp_path: Path) -> None:
    one, two = ScriptedEvaluator(seconds=0.005), ScriptedEvaluator(seconds=0.005)
    one.fail_next = [Unreachable("gone")]
    state = await run(tmp_path, one, two)
    started = [record.event for record in read_records(tmp_path) if isinstance(record.event, EvaluationStarted)]
    asked = {request.request_id for request in (*one.requests, *two.requests)}
    assert asked == {event.request_id for event in started}
    assert state.finished is not None and state.finished.best_id is not None


async def test_with_no_evaluator_left_the_run_waits(tmp_path: Path) -> None:
    evaluator = ScriptedEvaluator(seconds=0.005)
    evaluator.fail_next = [Unreachable("gone")]

    async def be_away() -> None:
        while evaluator.fail_next:
            await asyncio.sleep(0.001)
        evaluator.down = True
        await asyncio.sleep(0.1)
        evaluator.down = False

    away = asyncio.create_task(be_away())
    state = await run(tmp_path, evaluator, evaluations=5)
    await away
    kinds = [type(record.event) for record in read_records(tmp_path)]
    assert kinds.count(Paused) == kinds.count(Resumed) >= 1
    assert state.evaluated == 5 and not state.paused


async def test_no_evaluator_at_all_is_an_error(tmp_path: Path) -> None:
    evaluator = ScriptedEvaluator()
    evaluator.down = True
    with pytest.raises(NoEvaluator, match="nobody at home"):
        await run(tmp_path, evaluator)


async def test_a_refused_problem_ends_the_run(tmp_path: Path) -> None:
    evaluator = ScriptedEvaluator()
    evaluator.refuse_problem = True
    with pytest.raises(ProblemRefused):
        await run(tmp_path, evaluator)
    state = await run(tmp_path / "b", evaluator, accept_refused_problem=True, evaluations=3)
    assert state.finished is not None


async def test_faults_of_the_evaluator_do_not_count_against_a_candidate(tmp_path: Path) -> None:
    evaluator = ScriptedEvaluator()
    evaluator.fault_next = 2
    state = await run(tmp_path, evaluator, evaluations=6)
    assert state.evaluated == 6
    assert sum(candidate.faults for candidate in state.candidates.values()) == 2


async def test_what_no_evaluator_takes_is_left_aside(tmp_path: Path) -> None:
    evaluator = ScriptedEvaluator()
    evaluator.fail_next = [TooLarge("too large")]
    state = await run(tmp_path, evaluator, start=("x = 1\n", KERNEL), evaluations=6)
    failed = [record.event for record in read_records(tmp_path) if isinstance(record.event, EvaluationFailed)]
    assert len(failed) == 1 and failed[0].reason == "too_large"
    assert state.finished is not None and state.finished.best_id is not None


async def test_nonsense_answers_are_given_up(tmp_path: Path) -> None:
    evaluator = ScriptedEvaluator()
    evaluator.fail_next = [ContractViolation("nonsense")] * 3
    state = await run(tmp_path, evaluator, start=("x = 1\n", KERNEL), evaluations=4)
    assert sum(bool(candidate.unevaluable) for candidate in state.candidates.values()) >= 1


async def test_seeds_of_the_problem_are_tried_and_duplicates_cost_nothing(tmp_path: Path) -> None:
    evaluator = ScriptedEvaluator()
    evaluator.seeds = (
        Seed(name="inductor", source=KERNEL.replace("TILE 4", "TILE 64")),
        Seed(name="same", source="# x\n" + KERNEL),
    )
    state = await run(tmp_path, evaluator, evaluations=5)
    assert state.duplicates == 1
    assert [candidate.proposed.idea for candidate in state.candidates.values()][:2] == ["k0", "inductor"]


async def test_a_start_that_fails_leaves_nothing_to_verify(tmp_path: Path) -> None:
    state = await run(tmp_path, ScriptedEvaluator(), start=("BROKEN = 1\n",))
    assert state.finished is not None and state.finished.best_id is None
    assert "no kernel to start from" in state.finished.reason


async def test_a_model_and_the_tuner_work_together(tmp_path: Path) -> None:
    # The tuner has its turn while calls are under way.
    proposer = ScriptedProposer(seconds=0.02)
    state = await run(tmp_path, ScriptedEvaluator(), proposer=proposer, budget_tokens=60_000, evaluations=40)
    makers = {candidate.proposed.proposer for candidate in state.candidates.values()}
    assert {"user", "tuner", "scripted"} <= makers
    assert state.usage.total_tokens == len(proposer.requests) * COST <= 60_000
    best = best_kernel(tmp_path)
    assert best is not None and "BONUS" in best.source
    kinds = {request.action for request in proposer.requests}
    assert len(kinds) >= 2
    assert all(request.failure is not None for request in proposer.requests if request.action.value == "fix")


async def test_the_budget_of_tokens_is_kept(tmp_path: Path) -> None:
    proposer = ScriptedProposer()
    state = await run(
        tmp_path, ScriptedEvaluator(), proposer=proposer, budget_tokens=10_000, evaluations=None, patience=200
    )
    assert state.usage.total_tokens <= 10_000
    assert len(proposer.requests) == 4  # 2000 spent each, 3000 reserved: the fifth cannot be afforded


async def test_useless_replies_are_paid_and_survived(tmp_path: Path) -> None:
    usage = Usage(prompt_tokens=100, completion_tokens=10)
    replies = [
        Proposal(outcome=outcome, usage=usage, text="\ud800")
        for outcome in ReplyOutcome
        if outcome is not ReplyOutcome.OK
    ]
    proposer = ScriptedProposer(replies=list(replies))
    state = await run(tmp_path, ScriptedEvaluator(), proposer=proposer, budget_tokens=30_000, evaluations=20)
    assert state.useless_replies == len(replies)
    assert state.finished is not None and state.finished.best_id is not None


async def test_equal_replies_are_not_evaluated_twice(tmp_path: Path) -> None:
    same = Proposal(outcome=ReplyOutcome.OK, source=KERNEL + "\n# words\n", usage=Usage(prompt_tokens=5))
    state = await run(tmp_path, ScriptedEvaluator(), proposer=ScriptedProposer(replies=[same, same]), evaluations=8)
    skipped = [record.event for record in read_records(tmp_path) if isinstance(record.event, DuplicateSkipped)]
    assert len(skipped) >= 2 and state.duplicates >= 2


async def test_an_unreachable_model_pauses_the_run(tmp_path: Path) -> None:
    proposer = ScriptedProposer(failures=[EndpointUnreachable("no route", retry_after_s=0.02)] * 2)
    state = await run(tmp_path, ScriptedEvaluator(), proposer=proposer, evaluations=10)
    kinds = [type(record.event) for record in read_records(tmp_path)]
    assert Paused in kinds and kinds.count(Paused) == kinds.count(Resumed)
    assert kinds.count(ModelCallFailed) == 2
    assert state.usage.total_tokens == (len(proposer.requests) - 2) * COST


async def test_a_model_that_refuses_leaves_the_tuner(tmp_path: Path) -> None:
    proposer = ScriptedProposer(failures=[ProposerRefused("wrong key")] * 9)
    state = await run(tmp_path, ScriptedEvaluator(), proposer=proposer, evaluations=10)
    assert "wrong key" in state.refused["scripted"] and state.usage.total_tokens == 0
    assert state.evaluated == 10


async def test_time_ends_the_search_even_while_an_evaluation_is_slow(tmp_path: Path) -> None:
    state = await run(tmp_path, ScriptedEvaluator(seconds=0.15), minutes=0.5 / 60, evaluations=None)
    assert state.finished is not None and "time" in state.finished.reason
    assert state.evaluated < 20


async def test_a_cancelled_run_goes_on_later(tmp_path: Path) -> None:
    evaluator = ScriptedEvaluator(seconds=0.03)
    task = asyncio.create_task(run(tmp_path, evaluator, evaluations=12))
    await asyncio.sleep(0.4)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with RunStore.open(tmp_path) as store:
        state = await Engine(store, EvaluatorPool([Endpoint(name="e0", transport=evaluator)])).run()
    assert state.finished is not None and state.evaluated == 12
    assert len(evaluator.executed) == len(set(evaluator.executed)) == sum(state.attempts.values())


async def test_a_finished_run_can_be_given_more(tmp_path: Path) -> None:
    evaluator = ScriptedEvaluator()
    first = await run(tmp_path, evaluator, evaluations=6)
    with RunStore.open(tmp_path) as store:
        pool = EvaluatorPool([Endpoint(name="e0", transport=evaluator)])
        more = RunSettings(
            **{**{name: getattr(first.settings, name) for name in RunSettings.__slots__}, "evaluations": 12}
        )
        second = await Engine(store, pool, settings=more).run()
    assert second.evaluated == 12 and second.finished is not None


async def test_what_was_only_made_may_be_begun_with_other_settings(tmp_path: Path) -> None:
    made = RunSettings(evaluations=20)
    event, texts = start_events(
        version="0", problem=Problem(source=PROBLEM, name="p"), settings=made, start=[("k", KERNEL)]
    )
    with RunStore.create(tmp_path) as store:
        store.append(event, texts=texts)
        pool = EvaluatorPool([Endpoint(name="e0", transport=ScriptedEvaluator())])
        state = await Engine(store, pool, settings=replace(made, evaluations=5)).run()
    assert state.evaluated == 5 and replay(read_records(tmp_path)) == state


async def test_a_run_without_limits_ends_when_nothing_improves(tmp_path: Path) -> None:
    state = await run(tmp_path, ScriptedEvaluator(), evaluations=None, patience=8)
    assert state.finished is not None and "nothing improved" in state.finished.reason


async def drained(
    folder: Path,
    evaluator: ScriptedEvaluator,
    proposer: ScriptedProposer | None,
    when: Callable[[Event], bool],
    pool_settings: PoolSettings | None = None,
) -> RunState:
    """A run that is asked to end at the first event for which `when` holds."""
    event, texts = start_events(
        version="0",
        problem=Problem(source=PROBLEM, name="p"),
        settings=RunSettings(evaluations=4, models=(SCRIPTED,) if proposer else ()),
        start=[("k", KERNEL)],
    )
    drain = Drain()

    def observe(record: Record, _state: RunState) -> None:
        if when(record.event):
            drain.ask()

    with RunStore.create(folder) as store:
        store.append(event, texts=texts)
        pool = EvaluatorPool([Endpoint(name="one", transport=evaluator)], settings=pool_settings)
        proposers = {"scripted": proposer} if proposer else None
        state = await Engine(store, pool, proposers, observe=observe, drain=drain).run()
    assert replay(read_records(folder)) == state
    return state


async def test_a_drain_does_not_wait_for_an_endpoint_that_does_not_answer(tmp_path: Path) -> None:
    proposer = ScriptedProposer(failures=[EndpointUnreachable("away", retry_after_s=1e6) for _ in range(9)])
    state = await drained(tmp_path, ScriptedEvaluator(), proposer, lambda event: isinstance(event, Paused))
    assert state.finished is None and not state.calls and not state.in_flight and not state.paused


async def test_a_drain_does_not_wait_for_evaluators_that_are_gone(tmp_path: Path) -> None:
    evaluator = ScriptedEvaluator()

    def gone(event: Event) -> bool:
        evaluator.down |= isinstance(event, EvaluationStarted)
        return isinstance(event, EvaluatorChanged)

    state = await drained(tmp_path, evaluator, None, gone, PoolSettings(probe_s=1e6, rest_s=1e6))
    # It is sent again, under its own id, by who resumes.
    assert state.finished is None and state.requests_in_flight > 0


async def test_a_run_with_nothing_left_to_begin_finishes_although_it_was_asked_to_drain(tmp_path: Path) -> None:
    def last(event: Event) -> bool:
        return isinstance(event, EvaluationStarted) and event.effort is Effort.FINAL

    state = await drained(tmp_path / "one", ScriptedEvaluator(lanes=2), None, last)
    # The drain came with the first of two verifications: the other was not begun.
    assert state.finished is None and state.verifying is not None

    started: list[Event] = []

    def second(event: Event) -> bool:
        started.extend([event] if last(event) else [])
        return len(started) == 2

    state = await drained(tmp_path / "two", ScriptedEvaluator(lanes=2), None, second)
    assert state.finished is not None and state.finished.best_id is not None
