"""Whole searches by the command, against a model over HTTP and the real evaluator service on a simulated device: one that
repairs, improves, merges and begins again, and one for each rule that ends a search. What each left is settled, and its log is
what comes of it again."""

from __future__ import annotations

import itertools
import json
import re
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.fleet.conftest import Host
from tests.searcher.openai_server import Asked, Reply, serve
from tests.searcher.scripted_evaluator import KERNEL, PROBLEM
from typer.testing import CliRunner

from kernelevo_evaluator.simulated_executor import speedup_of
from kernelevo_searcher.cli import app
from kernelevo_searcher.events import ModelCallStarted, Paused, Resumed
from kernelevo_searcher.proposers import ActionKind
from kernelevo_searcher.state import RunState, replay
from kernelevo_searcher.store import read_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOKENS = 8_000
"""Of each call, as the server charges it."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """An evaluator that answers at once."""
    with tempfile.TemporaryDirectory(prefix="ke") as folder:
        host = Host(Path(folder) / "h", {"simulated_s": 0, "simulated_lanes": 2})
        host.start()
        try:
            yield host.address
        finally:
            host.kill()


@cache
def kernel(number: int, least: float, most: float) -> str:
    """One of many kernels whose speedup on the simulated device lies between these."""
    sources = (f"{KERNEL}\n\nSALT = {salt}\n" for salt in itertools.count(number * 1_000_000))
    return next(source for source in sources if least <= speedup_of(source) < most)


def reply(source: str, number: int = 0) -> Reply:
    text = f"Name: k{number}\nIdea: idea {number}\n\n```python\n{source}```\n"
    return Reply(content=text, prompt_tokens=TOKENS // 2, completion_tokens=TOKENS // 2)


class Slow:
    """A model that always has something new, and nothing better."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def __call__(self, asked: Asked) -> Reply:
        number = next(self._numbers)
        return reply(kernel(number, 0.5, 0.9), number)


@dataclass
class Ended:
    """A search that has come to its end."""

    told: dict[str, Any]
    state: RunState
    prompts: list[str]


@pytest.fixture
def search(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    """A search that begins with a kernel of 1.3 times the speed, to its end."""
    monkeypatch.chdir(tmp_path)
    Path("problem.py").write_text(PROBLEM, encoding="utf-8")
    Path("start.py").write_text(kernel(0, 1.3, 1.31), encoding="utf-8")

    def run(
        model: Callable[[Asked], Reply] | None = None,
        *arguments: object,
        api_key: str | None = None,
        **settings: object,
    ) -> Ended:
        for name, value in settings.items():
            monkeypatch.setenv(f"KERNELEVO_{name.upper()}", str(value))
        command = ["evolve", "problem.py", "--start", "start.py", "--run", "run", "--evaluator", address, "--json"]
        with serve(model or Slow(), api_key=api_key, repeat_last=True) as server:
            if model is not None:
                command += ["--model", "m,price=1/1", "--base-url", server.base_url]
            done = CliRunner().invoke(app, [*command, *map(str, arguments)])
            assert done.exit_code in (0, 1), done.stderr
            prompts = [json.dumps(asked.body["messages"]) for asked in server.asked]
            charged = server.charged_tokens
        state = replay(read_records(Path("run")))
        assert not state.calls and not state.in_flight and state.finished is not None
        told = json.loads(done.stdout)
        assert told["tokens"] == state.usage.total_tokens == charged
        assert told["verified"] and told["stopped"] == state.finished.reason
        again = CliRunner().invoke(app, ["replay", "run", "--json"])
        assert json.loads(again.stdout)["same"], again.stdout
        return Ended(told, state, prompts)

    return run


def calls_of(action: ActionKind) -> int:
    events = [record.event for record in read_records(Path("run"))]
    return sum(isinstance(event, ModelCallStarted) and event.action is action for event in events)


def test_it_repairs_improves_merges_begins_again_and_ends(search: Callable[..., Ended]) -> None:
    slow, broken, repaired = Slow(), kernel(96, 1.0, 2.0).replace("SALT", "BROKEN"), kernel(97, 1.5, 1.6)
    firsts = {
        # By what a prompt asks for; the search asks while it measures, so the order is not fixed.
        "The kernel below failed": repaired,
        "Two kernels of different structure": kernel(98, 1.9, 2.1),
        "Begin again from the reference": kernel(99, 0.5, 0.9),
        "": broken,
    }

    def model(asked: Asked) -> Reply:
        task = asked.body["messages"][-1]["content"]
        words = next((words for words in firsts if words in task), None)
        if words is None or (words.startswith("Two") and repaired.splitlines()[-1] not in task):
            return slow(asked)
        return reply(firsts.pop(words))

    ended = search(model, "--without", "tune", calls_in_flight=1, merge_share=1, patience=12)
    proposed = {candidate.id: candidate.proposed.action for candidate in ended.state.candidates.values()}
    assert not firsts, "each was asked for"
    bests = [proposed[name] for _, name in ended.state.improvements]
    assert bests == [ActionKind.SEED, ActionKind.FIX, ActionKind.MERGE]
    assert proposed[ended.told["best"]] is ActionKind.MERGE and ended.told["proved"]
    assert ActionKind.RESTART in proposed.values() and "a restart included" in ended.told["stopped"]


def test_the_tokens(search: Callable[..., Ended]) -> None:
    ended = search(Slow(), "--budget-tokens", 80_000, "--without", "patience")
    assert ended.told["stopped"].startswith("the tokens are used up (") and ended.told["tokens"] <= 80_000
    # What is left does not pay for one more at its largest.
    assert len(ended.prompts) >= 5 and ended.state.budget_left < 16_384 + TOKENS


def test_the_money(search: Callable[..., Ended]) -> None:
    ended = search(Slow(), "--budget-dollars", 0.06, "--without", "patience")
    assert ended.told["stopped"].startswith("the money is used up ($0.0")
    assert ended.told["dollars"] == pytest.approx(ended.told["tokens"] / 1e6) and ended.told["dollars"] <= 0.06


def test_the_time(search: Callable[..., Ended]) -> None:
    ended = search(Slow(), "--minutes", 0.01, patience=1000)
    assert ended.told["stopped"] == "the time is used up (0.01 min)"


def test_the_evaluations(search: Callable[..., Ended]) -> None:
    ended = search(Slow(), "--evaluations", 7, patience=1000)
    assert ended.told["stopped"] == "the evaluations are used up (7)" and ended.told["evaluated"] == 7


def test_the_target(search: Callable[..., Ended]) -> None:
    ended = search(lambda asked: reply(kernel(99, 1.6, 1.7)), "--target-speedup", 1.5, "--without", "tune")
    assert ended.told["stopped"] == "the target of 1.5x is reached" and ended.told["proved"]


def test_the_limit_of_the_device(search: Callable[..., Ended]) -> None:
    # A speedup of 1.65 is 41 % of what the simulated memory allows.
    ended = search(lambda asked: reply(kernel(98, 1.64, 1.66)), "--without", "tune", floor_share=0.4)
    assert ended.told["stopped"].startswith("the best runs at 41% of the memory bandwidth")


def test_nothing_improves_a_restart_included(search: Callable[..., Ended]) -> None:
    ended = search(Slow(), "--without", "tune", patience=6)
    assert ended.told["stopped"].startswith("nothing improved in ") and "a restart included" in ended.told["stopped"]
    assert calls_of(ActionKind.RESTART) == 1
    (restart,) = [prompt for prompt in ended.prompts if "Begin again from the reference" in prompt]
    assert "idea 1" in restart, "it is told what was tried"


def test_nothing_new_is_said(search: Callable[..., Ended]) -> None:
    same = kernel(1, 0.5, 0.9)
    ended = search(lambda asked: reply(same), "--without", "tune")
    assert re.fullmatch(r"the last 1[2-9] replies held no new candidate", ended.told["stopped"])
    assert ended.told["evaluated"] <= 3, "the same is not measured again"


def test_every_model_refuses(search: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "sk-wrong-0123456789")
    ended = search(
        Slow(), "--api-key-env", "A_KEY", "--without", "tune", api_key="sk-right-0123456789", calls_in_flight=1
    )
    assert ended.told["stopped"].startswith("the model's endpoint refuses: ") and ended.told["tokens"] == 0
    assert "0123456789" not in json.dumps(ended.told)


def test_nothing_is_left_to_try(search: Callable[..., Ended]) -> None:
    Path("start.py").write_text("class ModelNew:\n    nothing_to_tune = True\n", encoding="utf-8")
    ended = search(None)
    assert ended.told["stopped"] == "nothing is left to try" and ended.told["evaluated"] == 1


def test_a_model_without_credit_pauses_the_search_and_does_not_end_it(
    search: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelevo_searcher.model_calls._FIRST_BACKOFF_S", 0.01)
    slow, numbers = Slow(), itertools.count(1)

    def model(asked: Asked) -> Reply:
        if 3 <= next(numbers) < 8:
            return Reply(status=429, error_code="insufficient_quota")
        return slow(asked)

    ended = search(model, "--without", "tune", "--evaluations", 8, patience=1000)
    assert ended.told["stopped"] == "the evaluations are used up (8)"
    kinds = [type(record.event) for record in read_records(Path("run"))]
    assert kinds.count(Paused) == kinds.count(Resumed) >= 1
