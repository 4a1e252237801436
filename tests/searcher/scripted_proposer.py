"""A model that is a list of habits: what stands at the boundary to a language model in tests of the search alone."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from tests.searcher.scripted_evaluator import KERNEL

from kernelevo_searcher.models import ModelSettings
from kernelevo_searcher.proposers import ActionKind, Proposal, ProposalRequest, ReplyOutcome, Usage

if TYPE_CHECKING:
    from pathlib import Path

SCRIPTED = ModelSettings(name="scripted", label="scripted")
RESERVE = 3000
COST = 2000


class ScriptedProposer:
    """Adds a bonus to what it is given; breaks something now and then.

    Args:
        journal: file to which every call is added.
        failures: raised by the next calls, in order.
        replies: what the next calls return, in order, before habits set in.
    """

    def __init__(
        self,
        journal: Path | None = None,
        *,
        failures: list[Exception] | None = None,
        replies: list[Proposal] | None = None,
        breaks: float = 0.25,
        seconds: float = 0.0,
    ) -> None:
        self._journal = journal
        self.failures = failures or []
        self.replies = replies or []
        self._breaks = breaks
        self._seconds = seconds
        self.requests: list[ProposalRequest] = []
        self.closed = False

    @property
    def model(self) -> str:
        return "scripted"

    def actions(self) -> frozenset[ActionKind]:
        return frozenset({ActionKind.REWRITE, ActionKind.REFINE, ActionKind.FIX, ActionKind.MERGE, ActionKind.RESTART})

    def messages(self, request: ProposalRequest) -> list[dict[str, str]]:
        return [{"role": "user", "content": f"{request.action.value} {request.seed}"}]

    def reserve(self, request: ProposalRequest) -> int:
        return RESERVE

    def estimate(self, request: ProposalRequest) -> Usage:
        return Usage(prompt_tokens=COST // 2, completion_tokens=COST // 2)

    async def propose(self, request: ProposalRequest) -> Proposal:
        self.requests.append(request)
        if self._journal is not None:
            with self._journal.open("a", encoding="utf-8") as file:
                file.write(f"{request.action.value}\n")
        await asyncio.sleep(self._seconds)
        if self.failures:
            raise self.failures.pop(0)
        if self.replies:
            return self.replies.pop(0)
        rng = random.Random(request.seed)
        base = request.parent.source if request.parent is not None else KERNEL
        kept = "\n".join(line for line in base.splitlines() if not line.startswith(("BONUS", "BROKEN", "SALT")))
        source = f"{kept}\nBONUS = {rng.randrange(6)}\nSALT = {rng.randrange(10**9)}\n"
        if request.action is not ActionKind.FIX and rng.random() < self._breaks:
            source += "BROKEN = True\n"
        return Proposal(
            outcome=ReplyOutcome.OK,
            source=source,
            idea=f"a bonus by {request.action.value}",
            text=f"Idea: more\n```python\n{source}```",
            usage=Usage(prompt_tokens=COST // 2, completion_tokens=COST // 2),
            model="scripted",
        )

    async def aclose(self) -> None:
        self.closed = True
