"""A run replayed from its log comes out the same, to the byte; where it does not, the place is named."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from typing import TYPE_CHECKING, Any

import pytest
from tests.searcher.openai_server import Asked, OpenAIServer, Reply, serve
from tests.searcher.scripted_evaluator import KERNEL, PROBLEM, ScriptedEvaluator
from typer.testing import CliRunner

from kernelevo_api.pool import Endpoint, EvaluatorPool, PoolSettings
from kernelevo_api.types import Problem, Seed
from kernelevo_searcher.cli import app
from kernelevo_searcher.drain import Drain
from kernelevo_searcher.engine import Engine, start_events
from kernelevo_searcher.events import (
    EvaluatorChanged,
    ModelCallFailed,
    ModelCallFinished,
    ModelCallStarted,
    ModelCallUnaffordable,
    Paused,
    RunResumed,
    RunSettings,
    SlotsChanged,
    StopDecided,
    event_kind,
)
from kernelevo_searcher.models import ModelSettings
from kernelevo_searcher.open_models import open_models
from kernelevo_searcher.proposers import ReplyOutcome
from kernelevo_searcher.replaying import replay_into
from kernelevo_searcher.state import replay
from kernelevo_searcher.store import RUN_FILE, RunStore, read_records

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kernelevo_searcher.replaying import Replayed
    from kernelevo_searcher.state import RunState


def kernel(number: int) -> str:
    broken = "BROKEN = True\n" if number % 4 == 3 else ""
    return f"{KERNEL}BONUS = {number % 7}\nSALT = {number}\n{broken}"


class Model:
    """What the model says: by and by every kind of reply that there is."""

    def __init__(self) -> None:
        self.calls = 0
        self.hang_at = 0
        self.hanging = asyncio.Event()

    def __call__(self, asked: Asked) -> Reply:
        self.calls += 1
        number = self.calls
        usage: dict[str, Any] = {"prompt_tokens": 900 + number, "completion_tokens": 300 + number}
        if number == self.hang_at:
            return Reply(delay_s=60.0)
        match number % 9:
            case 2:
                return Reply(content="I cannot help with that.", **usage)
            case 3:
                return Reply(content=f"Idea: cut\n\n```python\n{kernel(number)}", finish_reason="length", **usage)
            case 4:
                return Reply(status=429, headers={"Retry-After": "0"})
            case 5:
                return Reply(status=402, headers={"Retry-After": "0.05"}, error_message="no credit")
            case 6:
                return Reply(content="half", finish_reason="content_filter", report_usage=False)
            case _:
                return Reply(content=f"Name: n{number}\nIdea: more\n\n```python\n{kernel(number)}```\n", **usage)


def settings(server: OpenAIServer, **more: Any) -> RunSettings:
    models = tuple(
        ModelSettings(name=name, label=name, base_url=server.base_url, max_reply_tokens=2000, price="1.25/10")
        for name in ("one", "two")
    )
    return RunSettings(**{"evaluations": 24, "seed": 5, "models": models, **more})


def create(folder: Path, run: RunSettings) -> None:
    event, texts = start_events(
        version="0", problem=Problem(source=PROBLEM, name="p"), settings=run, start=[("mine", KERNEL)]
    )
    with RunStore.create(folder) as store:
        store.append(event, texts=texts)


async def work(
    folder: Path,
    *evaluators: ScriptedEvaluator,
    change: Callable[[RunSettings], RunSettings] = lambda run: run,
    drain_after: int = 0,
    watch: Callable[[RunState], None] = lambda _state: None,
) -> RunState:
    """One process's work on the run in this folder."""
    drain = Drain()
    with RunStore.open(folder) as store:
        run = change(replay(store.records()).settings)
        models = open_models(run, {})
        endpoints = [Endpoint(name=f"e{number}", transport=one) for number, one in enumerate(evaluators)]
        pool = EvaluatorPool(endpoints, settings=PoolSettings(probe_s=0.01, rest_s=0.01))

        def observe(_record: object, state: RunState) -> None:
            watch(state)
            if drain_after and state.evaluated >= drain_after:
                drain.ask()

        try:
            return await Engine(
                store, pool, models.proposers, cost=models.cost, settings=run, drain=drain, observe=observe
            ).run()
        finally:
            await models.aclose()


def check(folder: Path) -> Replayed:
    """The replay of a run, which must come out the same in every table."""
    copy = folder.with_name(f"{folder.name}-again")
    result = replay_into(folder, copy)
    assert result.parting is None, result.parting
    assert result.events == len(read_records(folder))
    with RunStore.open(folder, read_only=True) as one, RunStore.open(copy, read_only=True) as other:
        assert one.lines() == other.lines()
    assert blobs(folder) == blobs(copy)
    return result


def blobs(folder: Path) -> dict[str, str]:
    connection = sqlite3.connect(folder / RUN_FILE)
    try:
        return dict(connection.execute("SELECT digest, text FROM blobs"))
    finally:
        connection.close()


def kinds(folder: Path) -> set[str]:
    return {event_kind(type(record.event)) for record in read_records(folder)}


async def test_a_search_with_everything_in_it_is_replayed_to_the_byte(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first, second = ScriptedEvaluator(seconds=0.004, lanes=2), ScriptedEvaluator(seconds=0.006)
    first.seeds = (Seed(name="inductor", source=KERNEL.replace("GROUP_ROWS = 8", "GROUP_ROWS = 4")),)
    second.down = True
    first.fault_next = 2

    def come_and_go(state: RunState) -> None:
        second.down = not 4 <= state.evaluated < 9

    with serve(Model(), repeat_last=True) as server:
        create(folder, settings(server))
        state = await work(folder, first, second, watch=come_and_go, drain_after=10)
        assert state.finished is None
        # Gone on with, at other settings.
        state = await work(folder, first, second, change=lambda run: settings(server, evaluations=30, patience=40))
    assert state.finished is not None and state.finished.best_id is not None
    assert {
        event_kind(kind) for kind in (RunResumed, Paused, EvaluatorChanged, SlotsChanged, ModelCallFailed)
    } <= kinds(folder)
    outcomes = {
        event.outcome for record in read_records(folder) if isinstance(event := record.event, ModelCallFinished)
    }
    assert {ReplyOutcome.OK, ReplyOutcome.REFUSED, ReplyOutcome.TRUNCATED} <= outcomes
    check(folder)


@pytest.mark.parametrize("budget", [{"budget_tokens": 20_000}, {"budget_dollars": 0.05}, {"minutes": 0.01}])
async def test_a_search_that_runs_into_a_budget_is_replayed_to_the_byte(tmp_path: Path, budget: dict[str, Any]) -> None:
    folder = tmp_path / "run"
    with serve(Model(), repeat_last=True) as server:
        create(folder, settings(server, evaluations=None, **budget))
        state = await work(folder, ScriptedEvaluator(seconds=0.002, lanes=2))
    assert state.stop is not None and "used up" in state.stop.reason
    if "minutes" not in budget:
        assert event_kind(ModelCallUnaffordable) in kinds(folder)
    check(folder)


async def test_a_call_in_flight_at_a_crash_is_charged_by_its_reservation(tmp_path: Path) -> None:
    folder, model, evaluator = tmp_path / "run", Model(), ScriptedEvaluator(seconds=0.002)
    model.hang_at = 7
    with serve(model, repeat_last=True) as server:
        create(folder, settings(server, calls_in_flight=1, evaluations=12))
        asked = asyncio.Event()

        def watch(state: RunState) -> None:
            if model.calls >= 6 and state.calls:
                asked.set()

        task = asyncio.create_task(work(folder, evaluator, watch=watch))
        await asked.wait()
        while model.calls < 7:
            await asyncio.sleep(0.01)
        # As a killed process: nothing is written on the way out.
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        before = replay(read_records(folder))
        (call,) = before.calls.values()
        assert call.reserved_tokens > 2000 and call.reserved_dollars is not None
        state = await work(folder, evaluator)
    events = [record.event for record in read_records(folder)]
    (lost,) = [event for event in events if isinstance(event, ModelCallFinished) and event.outcome is ReplyOutcome.LOST]
    assert lost.call_id == call.call_id
    assert lost.usage.total_tokens == call.reserved_tokens and lost.usage.estimated
    assert lost.dollars == call.reserved_dollars
    finished = [event for event in events if isinstance(event, ModelCallFinished | ModelCallFailed)]
    assert state.usage.total_tokens == sum(event.usage.total_tokens for event in finished if event.usage is not None)
    assert {event.call_id for event in events if isinstance(event, ModelCallStarted)} == {
        event.call_id for event in finished
    }
    check(folder)


async def test_a_tuned_run_is_replayed_to_the_byte(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    create(folder, RunSettings(evaluations=25, seed=2))
    await work(folder, ScriptedEvaluator(lanes=2))
    check(folder)


def edited(folder: Path, copy: Path, sequence: int, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of a run with one of its events changed."""
    shutil.copytree(folder, copy)
    connection = sqlite3.connect(copy / RUN_FILE)
    connection.execute("DROP TRIGGER events_no_update")
    (payload,) = connection.execute("SELECT payload FROM events WHERE sequence = ?", (sequence,)).fetchone()
    event = json.loads(payload)
    change(event)
    connection.execute(
        "UPDATE events SET payload = ? WHERE sequence = ?", (json.dumps(event, sort_keys=True), sequence)
    )
    connection.commit()
    connection.close()
    return copy


async def test_where_a_log_comes_out_otherwise_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    prompts = tmp_path / "prompts"
    prompts.mkdir()
    with serve(Model(), repeat_last=True) as server:
        create(folder, settings(server, evaluations=12, prompts=str(prompts)))
        await work(folder, ScriptedEvaluator())
    records = read_records(folder)

    def place(kind: type) -> int:
        return next(record.sequence for record in records if isinstance(record.event, kind))

    # A decision that was not made: another parent, another reason.
    stop = edited(folder, tmp_path / "a", place(StopDecided), lambda event: event.update(reason="tired"))
    parting = replay_into(stop, tmp_path / "a-again").parting
    assert parting is not None and parting.sequence == place(StopDecided)
    assert [line.split(":")[0] for line in parting.differs] == ["reason"] and "tired" in parting.differs[0]
    # A reply that says something else than it was taken for.
    reply = edited(
        folder, tmp_path / "b", place(ModelCallFinished), lambda event: event.update(cut=not event.get("cut"))
    )
    assert (
        replay_into(reply, tmp_path / "b-again").parting is not None
        or replay_into(
            edited(folder, tmp_path / "c", place(ModelCallFinished), lambda event: event.update(declined=True)),
            tmp_path / "c-again",
        ).parting
        is not None
    )
    # Another seed decides otherwise, sooner or later.
    seeded = edited(folder, tmp_path / "d", 1, lambda event: event["settings"].update(seed=6))
    assert replay_into(seeded, tmp_path / "d-again").parting is not None
    # Another template asks otherwise.
    (prompts / "system.j2").write_text("Write kernels.\n{{ request.problem_source }}\n", encoding="utf-8")
    parting = replay_into(folder, tmp_path / "e-again").parting
    assert parting is not None and parting.sequence == place(ModelCallStarted)
    assert any(line.startswith("prompt_digests: ") for line in parting.differs)

    told = CliRunner().invoke(app, ["replay", str(folder), "--json"])
    assert told.exit_code == 1 and json.loads(told.stdout)["parting"]["event"] == place(ModelCallStarted)
    (prompts / "system.j2").unlink()
    told = CliRunner().invoke(app, ["replay", str(folder), "--into", str(tmp_path / "kept")])
    assert told.exit_code == 0 and "the same, to the byte" in told.stdout
    assert replay(read_records(tmp_path / "kept")) == replay(records)
    assert CliRunner().invoke(app, ["replay", str(tmp_path / "nowhere")]).exit_code == 2
