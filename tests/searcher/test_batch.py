"""A run by files: the same log, budget and results as a live one, and nothing lost or paid twice."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.searcher.scripted_evaluator import KERNEL, PROBLEM, ScriptedEvaluator
from typer.testing import CliRunner

from kernelevo_api.pool import Endpoint, EvaluatorPool
from kernelevo_api.types import DeviceKind, Seed, Verdict
from kernelevo_searcher.batch.answering import answer, read_jobs
from kernelevo_searcher.batch.lines import read_requests
from kernelevo_searcher.cli import app
from kernelevo_searcher.events import EvaluationStarted, ModelCallFinished, ModelCallStarted
from kernelevo_searcher.memory.bank import add_to_bank
from kernelevo_searcher.memory.lessons import Context, Lesson, Origin, RunLessons
from kernelevo_searcher.proposers import ReplyOutcome
from kernelevo_searcher.state import replay
from kernelevo_searcher.store import read_records

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

    from kernelevo_searcher.state import RunState

COST = 150


def kernelevo(*arguments: object, code: int = 0, stdin: str | None = None) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)
    assert result.exit_code == code, f"{arguments}: {result.exit_code}\n{result.stdout}\n{result.stderr}"
    return result


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def reply(request: dict[str, Any], content: str) -> str:
    """As a batch API answers."""
    body = {
        "id": "chatcmpl-1",
        "model": request["body"]["model"],
        "choices": [{"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": COST},
    }
    return json.dumps(
        {
            "id": "batch_req_1",
            "custom_id": request["custom_id"],
            "response": {"status_code": 200, "request_id": "r", "body": body},
            "error": None,
        }
    )


def kernel(number: int) -> str:
    bonus = f"BONUS = {number % 6}\nSALT = {number}\n"
    return f"Name: more\nIdea: a bonus\n\n```python\n{KERNEL}{bonus}```\n"


class Run:
    """A run in a folder of its own, whose evaluator stands beside it."""

    def __init__(self, folder: Path, *options: object) -> None:
        self.folder = folder
        self.path = folder / "run"
        self.evaluator = ScriptedEvaluator(lanes=2, speed=2.0)
        self.evaluator.seeds = (Seed(name="inductor", source=KERNEL.replace("GROUP_ROWS = 8", "GROUP_ROWS = 4")),)
        (folder / "problem.py").write_text(PROBLEM, encoding="utf-8")
        (folder / "start.py").write_text(KERNEL, encoding="utf-8")
        self.made = 0
        kernelevo(
            *("evolve", folder / "problem.py", "--start", folder / "start.py", "--model", "gpt-batch", "--no-run"),
            *("--run", self.path, *options),
        )

    @property
    def state(self) -> RunState:
        return replay(read_records(self.path))

    def ask(self, *options: object, code: int = 0) -> list[dict[str, Any]]:
        output = self.folder / "asked.jsonl"
        output.unlink(missing_ok=True)
        kernelevo("ask", self.path, "-o", output, *options, code=code)
        return lines(output)

    def tell(self, text: str, *options: object, code: int = 0) -> dict[str, Any]:
        return json.loads(kernelevo("tell", self.path, "--json", *options, code=code, stdin=text).stdout)

    def carry_out(self, requests: list[dict[str, Any]]) -> str:
        """The answers of the host that has the evaluator."""
        jobs, bad = read_jobs(read_requests("\n".join(json.dumps(each) for each in requests)))
        assert not bad
        written: list[str] = []

        async def work() -> None:
            pool = EvaluatorPool([Endpoint(name="offline", transport=self.evaluator)])
            self.evaluator._lanes = asyncio.Semaphore(2)
            await answer(jobs, pool, written.append)

        asyncio.run(work())
        return "\n".join(written)

    def evaluate(self, *options: object) -> None:
        """One round of evaluations, where there is something to evaluate."""
        output = self.folder / "asked.jsonl"
        output.unlink(missing_ok=True)
        asked = CliRunner().invoke(app, ["ask", str(self.path), "--evaluations", "-o", str(output), *map(str, options)])
        assert asked.exit_code in {0, 1}, asked.stderr
        if asked.exit_code == 0:
            self.tell(self.carry_out(lines(output)), "--evaluations")

    def prepare(self) -> None:
        """Have the problem registered and its seeds measured: prompts can be asked for."""
        self.evaluate()
        self.evaluate()

    def replies(self, requests: list[dict[str, Any]]) -> str:
        texts = []
        for request in requests:
            self.made += 1
            texts.append(reply(request, kernel(self.made)))
        return "\n".join(texts)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    # A run by files needs no key.
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    return Run(tmp_path)


def test_a_whole_search_by_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    run = Run(tmp_path, "--evaluations", "16")
    kernelevo("ask", run.path, code=2)
    for _ in range(30):
        run.evaluate("-n", 4)
        state = run.state
        if state.finished is not None:
            break
        output = tmp_path / "prompts.jsonl"
        asked = CliRunner().invoke(app, ["ask", str(run.path), "-n", "3", "-o", str(output)])
        assert asked.exit_code in {0, 1}
        if asked.exit_code == 0:
            prompts = lines(output)
            assert 1 <= len(prompts) <= 3
            assert {each["url"] for each in prompts} == {"/v1/chat/completions"}
            assert all(each["method"] == "POST" and each["body"]["messages"] for each in prompts)
            run.tell(run.replies(prompts))
    state = run.state
    assert state.finished is not None and state.finished.best_id is not None and state.evaluated == 16
    # As live: every call settled by its usage, every measurement once, the end verified.
    events = [record.event for record in read_records(run.path)]
    calls = [event for event in events if isinstance(event, ModelCallStarted)]
    assert calls and not state.calls and state.usage.total_tokens == COST * len(calls)
    started = [event.request_id for event in events if isinstance(event, EvaluationStarted)]
    assert sorted(run.evaluator.executed) == sorted(started)
    assert (run.path / "best.py").exists()
    kernelevo("replay", run.path)
    told = kernelevo("ask", run.path, code=1)
    assert "the run is finished" in told.stderr.lower()


def test_a_reply_counts_once_and_bad_lines_cost_nothing(run: Run) -> None:
    run.prepare()
    prompts = run.ask("-n", 4)
    assert len(prompts) == 4
    state = run.state
    assert len(state.calls) == 4 and state.usage.total_tokens == 0
    reserved = sum(call.reserved_tokens for call in state.calls.values())
    assert state.budget_left == state.settings.budget_tokens - reserved and reserved > 4 * 16_384

    good = reply(prompts[0], kernel(1))
    stranger = json.dumps({**json.loads(good), "custom_id": "elsewhere.m1"})
    unknown = json.dumps({**json.loads(good), "custom_id": prompts[0]["custom_id"].rsplit(".", 1)[0] + ".m99"})
    empty = json.dumps({"custom_id": prompts[1]["custom_id"], "response": {"status_code": 200, "body": {}}})
    expired = json.dumps(
        {"custom_id": prompts[2]["custom_id"], "response": None, "error": {"code": "batch_expired", "message": "late"}}
    )
    text = "\n".join([good, good, stranger, unknown, empty, expired, good[: len(good) // 2], "[]"])
    (run.folder / "replies.jsonl").write_text(text, encoding="utf-8")
    done = kernelevo("tell", run.path, run.folder / "replies.jsonl", "--json", code=2)
    told = json.loads(done.stdout)
    assert (told["taken"], told["told_before"], told["failed"], told["unusable"]) == (1, 1, 1, 5)
    for number, said in {
        3: "none of this run's",
        4: "no prompt of this run",
        5: "holds no choice",
        7: "not JSON",
    }.items():
        assert any(f":{number}: " in line and said in line for line in done.stderr.splitlines()), done.stderr
    state = run.state
    assert state.usage.total_tokens == COST and told["candidates"] == 1
    assert set(state.calls) == {each["custom_id"].rsplit(".", 1)[1] for each in (prompts[1], prompts[3])}

    # What is out is written again as it was; then it is told, or given up.
    assert run.ask("--again") == [prompts[1], prompts[3]]
    assert run.tell(reply(prompts[1], "No code at all."))["taken"] == 1
    assert run.tell(good)["told_before"] == 1
    kernelevo("tell", run.path, "--give-up", "m99", code=2)
    kernelevo("tell", run.path, "--give-up", prompts[3]["custom_id"])
    state = run.state
    charged = 2 * COST + next(
        event.reserved_tokens
        for record in read_records(run.path)
        if isinstance(event := record.event, ModelCallStarted) and event.call_id == "m4"
    )
    assert not state.calls and state.usage.total_tokens == charged

    # A reply that comes after all is of use, and is not charged again; one to a call that cost nothing is.
    assert run.tell(reply(prompts[3], kernel(2)))["candidates"] == 1
    assert run.state.usage.total_tokens == charged
    assert run.tell(reply(prompts[2], kernel(3)))["candidates"] == 1
    assert run.state.usage.total_tokens == charged + COST
    assert run.tell("\n".join([reply(prompts[3], kernel(4)), reply(prompts[2], kernel(5))]))["told_before"] == 2
    outcomes = [
        event.outcome for record in read_records(run.path) if isinstance(event := record.event, ModelCallFinished)
    ]
    assert outcomes.count(ReplyOutcome.LOST) == 1 and outcomes.count(ReplyOutcome.OK) == 3
    kernelevo("replay", run.path)


def test_prompts_never_sent_cost_nothing(run: Run) -> None:
    run.prepare()
    run.ask("-n", 2)
    kernelevo("tell", run.path, "--unpaid", code=2, stdin="")
    kernelevo("tell", run.path, "--give-up", "all", "--unpaid")
    state = run.state
    assert not state.calls and state.budget_left == state.settings.budget_tokens


def test_prompts_in_files_are_told_what_a_live_run_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bank = tmp_path / "bank.jsonl"
    origin = Origin(run_id="00000000-0000-0000-0000-000000000001", problem="0" * 16, day="2026-12-01")
    lesson = Lesson(technique="cache blocking", tried=3, faster=2, gains=(1.5,))
    add_to_bank(bank, [RunLessons(origin=origin, context=Context(device=DeviceKind.CPU, size=1), lessons=(lesson,))])
    run = Run(tmp_path, "--memory", bank, "--model", "o-batch,api=responses")
    run.prepare()
    prompts = run.ask("-n", 6)
    by_url = {each["url"]: each for each in prompts}
    assert all("cache blocking: tried 3x, faster 2x" in json.dumps(each["body"]) for each in prompts)
    assert set(by_url) == {"/v1/chat/completions", "/v1/responses"}
    asked = by_url["/v1/responses"]
    body = {
        "status": "completed",
        "output": [{"type": "message", "content": [{"type": "output_text", "text": kernel(1)}]}],
        "usage": {"input_tokens": 100, "output_tokens": 50, "total_tokens": COST},
    }
    answered = {"custom_id": asked["custom_id"], "response": {"status_code": 200, "body": body}, "error": None}
    assert run.tell(json.dumps(answered))["candidates"] == 1 and run.state.usage.total_tokens == COST
    kernelevo("replay", run.path)


def test_the_budget_bounds_what_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = Run(tmp_path, "--budget-tokens", 60_000)
    run.prepare()
    prompts = run.ask("-n", 16)
    assert 1 <= len(prompts) <= 3
    assert run.state.budget_left >= 0


def test_evaluations_count_once_and_can_be_given_up(run: Run) -> None:
    (registration,) = run.ask("--evaluations")
    assert registration["url"] == "/v1/problems" and registration["body"]["problem"]["source"] == PROBLEM
    refused = json.dumps(
        {
            "custom_id": registration["custom_id"],
            "response": None,
            "error": {"code": "problem_refused", "message": "no"},
        }
    )
    assert run.tell(refused, "--evaluations", code=2)["unusable"] == 1
    answered = run.carry_out([registration])
    assert run.tell(answered, "--evaluations")["taken"] == 1
    assert run.tell(answered, "--evaluations")["told_before"] == 1

    requests = run.ask("--evaluations", "-n", 2)
    assert len(requests) == 2 and all(each["body"]["problem"]["source"] == PROBLEM for each in requests)
    assert run.ask("--evaluations", "--again") == requests
    results = run.carry_out(requests).split("\n")
    other = json.loads(results[0])
    other["response"]["body"]["candidate_digest"] = "0" * 64
    nonsense = {**other, "response": {"status_code": 200, "body": {"verdict": "splendid"}}}
    told = run.tell("\n".join(map(json.dumps, (other, nonsense))), "--evaluations", code=2)
    assert told["unusable"] == 2 and len(run.state.in_flight) == 2

    by_id = {json.loads(line)["custom_id"]: line for line in results}
    first, second = (each["custom_id"] for each in requests)
    kernelevo("tell", run.path, "--evaluations", "--give-up", first)
    assert run.tell(by_id[second], "--evaluations")["taken"] == 1
    # It was measured after all, and is not asked for anew.
    assert run.tell(by_id[first], "--evaluations")["taken"] == 1
    assert run.tell("\n".join(results), "--evaluations")["told_before"] == 2
    state = run.state
    measured = [candidate for candidate in state.candidates.values() if candidate.evaluations]
    assert len(measured) == 2 and state.evaluated == 2 and len(run.evaluator.executed) == 2
    assert all(candidate.evaluation and candidate.evaluation.verdict is Verdict.PASSED for candidate in measured)
    # The wrong file for the flag is said to be that.
    assert run.tell(by_id[first], code=2)["unusable"] == 1


def test_a_live_process_leaves_prompts_that_are_out_alone(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.prepare()
    run.ask("-n", 1)
    refused = kernelevo("evolve", "--resume", run.path, code=2)
    assert "prompts of this run are out" in refused.stderr and "--give-up" in refused.stderr
    assert len(run.state.calls) == 1
