"""What a budget buys: by each limit, by estimates before the first call and by means once calls were made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.searcher.scripted_evaluator import KERNEL, PROBLEM, ScriptedEvaluator
from tests.searcher.scripted_proposer import COST, RESERVE, SCRIPTED, ScriptedProposer

from kernelevo_api.pool import Endpoint, EvaluatorPool
from kernelevo_api.types import Capabilities, Problem, ProblemReport
from kernelevo_searcher.engine import Engine, start_events
from kernelevo_searcher.events import RunSettings
from kernelevo_searcher.forecast import CallCost, Forecast, Limit, forecast, forecast_line
from kernelevo_searcher.llm.endpoint import EndpointSettings
from kernelevo_searcher.llm.proposer import LLMProposer
from kernelevo_searcher.proposers import ActionKind, ProposalRequest, Usage
from kernelevo_searcher.state import RunState
from kernelevo_searcher.store import RunStore

if TYPE_CHECKING:
    from pathlib import Path

ONE = CallCost(tokens=10_000, most_tokens=20_000, dollars=0.05)


def after(calls: int, *, useful: int, tokens: int, dollars: float | None, **settings: object) -> RunState:
    """A run in which so many calls cost so much each."""
    state = RunState(settings=RunSettings(**settings))  # type: ignore[arg-type]
    for number in range(calls):
        usage = Usage(prompt_tokens=tokens)
        state.spending.count("refine", "m", useful=number < useful, failed=False, usage=usage, dollars=dollars)
    return state


@pytest.mark.parametrize(
    ("settings", "first", "count"),
    [
        ({"budget_tokens": 100_000}, Limit.TOKENS, 10),
        ({"budget_tokens": 100_000, "budget_dollars": 0.21}, Limit.DOLLARS, 4),
        ({"budget_tokens": 100_000, "budget_dollars": 0.21, "evaluations": 3}, Limit.EVALUATIONS, 3),
        ({"budget_tokens": 100_000, "minutes": 1.0}, Limit.TOKENS, 10),
        ({"budget_tokens": 9_999}, Limit.TOKENS, 0),
    ],
)
def test_before_the_first_call_estimates_say_what_runs_out_first(
    settings: dict[str, object], first: Limit, count: int
) -> None:
    told = forecast(after(0, useful=0, tokens=0, dollars=None, **settings), [ONE])
    assert told.first is first and told.candidates[first] == count and told.calls == 0
    assert told.least_by_tokens == told.candidates[Limit.TOKENS] // 2
    assert set(told.candidates) == {
        Limit.TOKENS,
        *([Limit.DOLLARS] if "budget_dollars" in settings else []),
        *([Limit.EVALUATIONS] if "evaluations" in settings else []),
        *([Limit.TIME] if "minutes" in settings else []),
    }
    assert told.candidates.get(Limit.TIME) is None


def test_several_models_count_by_their_weights_and_one_unknown_price_makes_the_sum_unknown() -> None:
    state = after(0, useful=0, tokens=0, dollars=None, budget_tokens=100_000, budget_dollars=1.0)
    cheap = CallCost(weight=3.0, tokens=2_000, most_tokens=4_000, dollars=0.01)
    told = forecast(state, [ONE, cheap])
    assert told.tokens_per_call == 4_000 and told.candidates[Limit.TOKENS] == 25 and told.least_by_tokens == 5
    assert told.dollars_per_call == pytest.approx(0.02) and told.candidates[Limit.DOLLARS] == 50
    told = forecast(state, [ONE, CallCost(tokens=2_000, most_tokens=4_000)])
    assert told.dollars_per_call is None and told.candidates[Limit.DOLLARS] is None and told.first is Limit.TOKENS


def test_means_of_the_calls_made_replace_estimates() -> None:
    state = after(8, useful=4, tokens=5_000, dollars=0.5, budget_tokens=100_000, budget_dollars=7.0, minutes=10.0)
    state.active_s, state.evaluated = 100.0, 4
    told = forecast(state, [ONE])
    # 60,000 tokens pay for twelve calls, and every second one makes a candidate; $3 for six calls; 500 s for one each 25 s.
    assert told.candidates == {Limit.TOKENS: 6, Limit.DOLLARS: 3, Limit.TIME: 20}
    assert told.first is Limit.DOLLARS and told.calls == 8 and told.least_by_tokens is None


def test_calls_without_a_reply_do_not_make_the_others_cheaper() -> None:
    state = after(2, useful=2, tokens=5_000, dollars=None, budget_tokens=100_000)
    state.spending.count("refine", "m", useful=False, failed=True, usage=None, dollars=None)
    told = forecast(state, [ONE])
    assert told.tokens_per_call == 5_000 and told.calls == 2 and told.dollars_per_call is None


def test_replies_that_were_all_useless_promise_nothing() -> None:
    told = forecast(after(3, useful=0, tokens=5_000, dollars=None, budget_tokens=100_000), [ONE])
    assert told.candidates == {Limit.TOKENS: None} and told.first is None and forecast_line(told) is None
    spent = forecast(after(3, useful=0, tokens=5_000, dollars=None, budget_tokens=15_000), [ONE])
    assert spent.candidates == {Limit.TOKENS: 0}


def test_without_a_model_neither_tokens_nor_dollars_bind() -> None:
    told = forecast(RunState(settings=RunSettings(evaluations=60)), [])
    assert forecast_line(told) == "forecast: about 60 candidates, then the evaluations run out"


def test_the_line_says_all_that_is_known() -> None:
    told = Forecast(
        candidates={Limit.TOKENS: 88, Limit.DOLLARS: 142, Limit.TIME: None},
        least_by_tokens=61,
        tokens_per_call=11_300.4,
        dollars_per_call=0.0123,
    )
    assert forecast_line(told) == (
        "forecast: about 88 candidates, then the tokens run out (tokens 88, at least 61 · dollars 142 · time not known yet); "
        "a call takes about 11,300 tokens ($0.0123), estimated"
    )


def test_a_model_estimates_less_than_it_reserves() -> None:
    proposer = LLMProposer(EndpointSettings(model="m", base_url="http://127.0.0.1:1/v1", max_reply_tokens=1000))

    def request(problem: str) -> ProposalRequest:
        return ProposalRequest(
            action=ActionKind.REWRITE,
            problem_source=problem,
            report=ProblemReport(problem_digest="0"),
            capabilities=Capabilities(),
        )

    short, long = request(PROBLEM), request(PROBLEM * 50)
    usage = proposer.estimate(short)
    assert usage.completion_tokens == 500 and 0 < usage.total_tokens < proposer.reserve(short)
    assert proposer.estimate(long).prompt_tokens > usage.prompt_tokens + len(PROBLEM) * 10


async def test_a_run_is_foreseen_when_it_begins_and_by_its_own_means_when_it_goes_on(tmp_path: Path) -> None:
    event, texts = start_events(
        version="0",
        problem=Problem(source=PROBLEM, name="p"),
        settings=RunSettings(budget_tokens=20_000, models=(SCRIPTED,)),
        start=[("k", KERNEL)],
    )
    told: list[Forecast] = []

    async def work(store: RunStore, settings: RunSettings | None = None) -> None:
        pool = EvaluatorPool([Endpoint(name="one", transport=ScriptedEvaluator())])
        engine = Engine(store, pool, {"scripted": ScriptedProposer()}, on_forecast=told.append, settings=settings)
        await engine.run()

    with RunStore.create(tmp_path) as store:
        store.append(event, texts=texts)
        await work(store)
    with RunStore.open(tmp_path) as store:
        await work(store, RunSettings(budget_tokens=40_000, models=(SCRIPTED,)))
    begun, resumed = told
    assert begun.candidates == {Limit.TOKENS: 20_000 // COST} and begun.calls == 0
    assert begun.least_by_tokens == 20_000 // RESERVE
    assert resumed.calls > 0 and resumed.tokens_per_call == COST
