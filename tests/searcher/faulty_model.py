"""Whole searches against a model server that fails in every way that it can, and the account that must come out exact.

The server is a real one on loopback; what it charged is what it says that it wrote. Used by the tests, and at length by
`benchmarks/model_faults.py`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.searcher.openai_server import Asked, Reply, serve
from tests.searcher.scripted_evaluator import PROBLEM, ScriptedEvaluator

from kernelevo_api.pool import Endpoint, EvaluatorPool
from kernelevo_api.types import Problem
from kernelevo_searcher.engine import Engine, start_events
from kernelevo_searcher.events import ModelCallFailed, ModelCallFinished, ModelCallStarted, RunSettings
from kernelevo_searcher.llm.endpoint import EndpointSettings, RetrySettings
from kernelevo_searcher.llm.proposer import LLMProposer
from kernelevo_searcher.models import ModelSettings
from kernelevo_searcher.proposers import ReplyOutcome
from kernelevo_searcher.state import replay
from kernelevo_searcher.store import RunStore

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from typing import Literal

    from kernelevo_searcher.events import Record

__all__ = ["Account", "search"]

KERNEL = "class ModelNew:\n    pass\n\n\n"
"""Without a parameter: the tuner would only make the searches longer."""
RETRY = RetrySettings(attempts=5, first_delay_s=0.002, longest_delay_s=0.01, patience_s=2.0)
TIMEOUT_S = 0.25
FAULT_SHARE = 0.5


@dataclass(slots=True, kw_only=True)
class Account:
    """What came of one search."""

    asked: int = 0
    """Requests that reached the server."""
    faults: int = 0
    """Of these, answered otherwise than by a whole reply."""
    charged: int = 0
    """Tokens, by the server."""
    spent: int = 0
    """Tokens, by the run's ledger."""
    budget: int = 0
    uncertain: bool = False
    """A reply was lost on the way or came without its usage, so that the ledger holds an upper bound."""
    wrong: list[str] = field(default_factory=list)
    """What must not be, in words."""


class FaultyModel:
    """Draws each answer from a seed, and remembers what it delivered whole.

    Args:
        certain: fail only in ways after which both sides know what was paid.
    """

    def __init__(self, seed: int, *, certain: bool) -> None:
        self._rng = random.Random(seed)
        self._kinds = _CERTAIN if certain else _CERTAIN + _UNCERTAIN
        self.delivered: list[str] = []
        self.faults = 0
        self.uncertain = False

    def __call__(self, asked: Asked) -> Reply:
        rng, number = self._rng, len(self.delivered)
        messages = asked.body.get("messages") or asked.body["input"]
        # What a provider counts is never more than is thought likely, by bytes.
        prompt = sum(len(message["content"]) for message in messages) // 5
        content = self._content(rng, number)
        usage = {"prompt_tokens": prompt, "completion_tokens": len(content) // 5}
        if rng.random() >= FAULT_SHARE:
            self.delivered.append(content)
            return Reply(content=content, **usage)
        self.faults += 1
        match rng.choice(self._kinds):
            case "busy":
                return Reply(status=429, headers={"Retry-After": "0.01"})
            case "down":
                return Reply(status=rng.choice([500, 502, 503, 529]))
            case "credit":
                return Reply(status=402, headers={"Retry-After": "0.01"})
            case "reset":
                self.uncertain = True
                return Reply(drop=True)
            case "broken":
                self.uncertain = True
                return Reply(content=content, drop_after_characters=rng.choice([0, 32, 160]), **usage)
            case "garbage":
                self.uncertain = True
                return Reply(raw_body=rng.choice(["<html>gateway</html>", "[]", "{", '{"choices": [], "output": 7}']))
            case "hang":
                self.uncertain = True
                return Reply(content=content, delay_s=2 * TIMEOUT_S, **usage)
            case "unmetered":
                self.uncertain = True
                self.delivered.append(content)
                return Reply(content=content, report_usage=False, **usage)
            case "cut":
                self.delivered.append(content[:-30])
                return Reply(content=content[:-30], finish_reason="length", **usage)
            case "declined":
                return Reply(content=None, refusal="I will not do that.", **usage)
            case "empty":
                return Reply(content="", **usage)
            case _:
                self.delivered.append("Words, and no code.")
                return Reply(content="Words, and no code.", **usage)

    @staticmethod
    def _content(rng: random.Random, number: int) -> str:
        kernel = f'{KERNEL}NOTE = "BONUS {rng.randrange(6)}, number {number}"\n'
        return f"Name: n{number}\nIdea: a bonus\n\n```python\n{kernel}```\n"


_CERTAIN = ["busy", "down", "credit", "cut", "declined", "empty", "prose"]
_UNCERTAIN = ["reset", "broken", "garbage", "unmetered", "hang"]


async def search(
    folder: Path,
    seed: int,
    *,
    api: Literal["chat", "responses"],
    stream: bool,
    certain: bool = False,
    budget: int = 250_000,
) -> Account:
    """One search until its tokens are used up, and what is wrong with its account."""
    model = FaultyModel(seed, certain=certain)
    run = RunSettings(
        seed=seed,
        budget_tokens=budget,
        patience=1000,
        models=(ModelSettings(name="m", label="m", api=api),),
    )
    event, texts = start_events(
        version="0", problem=Problem(source=PROBLEM, name="p"), settings=run, start=[("k", KERNEL)]
    )
    with serve(model, repeat_last=True) as server, RunStore.create(folder) as store:
        store.append(event, texts=texts)
        proposer = LLMProposer(
            EndpointSettings(
                model="m", base_url=server.base_url, api=api, stream=stream, timeout_s=TIMEOUT_S, retry=RETRY,
                max_reply_tokens=8_000,
            )
        )  # fmt: skip
        overspent: list[int] = []

        def observe(_record: Record, state: object) -> None:
            left = state.budget_left  # type: ignore[attr-defined]
            if left < 0:
                overspent.append(left)

        pool = EvaluatorPool([Endpoint(name="e", transport=ScriptedEvaluator(lanes=4))])
        try:
            await Engine(store, pool, {"m": proposer}, observe=observe).run()
        finally:
            await proposer.aclose()
        records = tuple(store.records())
        account = Account(
            asked=len(server.asked),
            faults=model.faults,
            charged=server.charged_tokens,
            spent=replay(records).usage.total_tokens,
            budget=budget,
            uncertain=model.uncertain,
        )
        replies = {
            store.text(event.text_digest)
            for record in records
            if isinstance(event := record.event, ModelCallFinished) and event.text_digest is not None
        }
    account.wrong = [*_unsettled(records), *_lost(model.delivered, replies)]
    if overspent or account.spent > budget:
        account.wrong.append(f"overspent: {min(overspent, default=budget - account.spent)} tokens were left")
    if account.spent < account.charged:
        account.wrong.append(f"the ledger has {account.spent} tokens, {account.charged} were charged")
    if not account.uncertain and account.spent != account.charged:
        account.wrong.append(f"the ledger has {account.spent} tokens, exactly {account.charged} were charged")
    return account


def _unsettled(records: Iterable[Record]) -> list[str]:
    """Calls that were not settled once, or cost more than was reserved for them."""
    wrong, open_calls = [], dict[str, int]()
    for record in records:
        event = record.event
        if isinstance(event, ModelCallStarted):
            open_calls[event.call_id] = event.reserved_tokens
        elif isinstance(event, ModelCallFinished | ModelCallFailed):
            reserved = open_calls.pop(event.call_id, None)
            used = event.usage.total_tokens if event.usage is not None else 0
            if reserved is None:
                wrong.append(f"{event.call_id} was settled twice")
            elif used > reserved:
                wrong.append(f"{event.call_id} cost {used} tokens, {reserved} were reserved")
            if isinstance(event, ModelCallFinished) and event.outcome is ReplyOutcome.LOST:
                wrong.append(f"{event.call_id} was given up")
    return [*wrong, *(f"{call_id} was never settled" for call_id in open_calls)]


def _lost(delivered: Iterable[str], replies: set[str]) -> list[str]:
    return [f"a whole reply is not in the log: {text[:20]!r}" for text in delivered if text not in replies]
