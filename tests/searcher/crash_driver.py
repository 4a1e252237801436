"""A searcher that dies where it is told to: run as a process of its own by the tests of resuming.

    python crash_driver.py FOLDER APPENDS MOMENT WITH_MODEL

It ends itself with SIGKILL at the given append to the log, before or after it is on disk; 0 lets it live.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.searcher.scripted_evaluator import KERNEL, PROBLEM, ScriptedEvaluator
from tests.searcher.scripted_proposer import SCRIPTED, ScriptedProposer

from kernelevo_api.pool import Endpoint, EvaluatorPool
from kernelevo_api.types import Problem
from kernelevo_searcher.engine import Engine, start_events
from kernelevo_searcher.events import Event, Record, RunSettings
from kernelevo_searcher.store import RunNotFound, RunStore

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

TOKENS = 60_000


class MortalStore(RunStore):
    """A store whose process ends at a chosen append."""

    appends_left = 0
    after = False

    def append(self, *events: Event, texts: Iterable[str] = (), at: datetime | None = None) -> tuple[Record, ...]:
        """As a store's, or the end."""
        self.appends_left -= 1
        if self.appends_left == 0 and not self.after:
            os.kill(os.getpid(), signal.SIGKILL)
        records = super().append(*events, texts=texts, at=at)
        if self.appends_left == 0 and self.after:
            os.kill(os.getpid(), signal.SIGKILL)
        return records


async def main(folder: Path, appends: int, moment: str, with_model: bool) -> None:
    """Start the run, or go on with it."""
    MortalStore.appends_left, MortalStore.after = appends, moment == "after"
    settings: dict[str, Any] = {"models": (SCRIPTED,), "budget_tokens": TOKENS} if with_model else {}
    try:
        store = MortalStore.open(folder / "run")
    except RunNotFound:
        store = MortalStore.create(folder / "run")
        event, texts = start_events(
            version="0",
            problem=Problem(source=PROBLEM, name="p"),
            settings=RunSettings(evaluations=12, seed=3, **settings),
            start=[("start", KERNEL)],
        )
        store.append(event, texts=texts)
    with store:
        evaluator = ScriptedEvaluator(folder / "journal.jsonl", seconds=0.002)
        pool = EvaluatorPool([Endpoint(name="one", transport=evaluator)])
        proposer = ScriptedProposer(folder / "calls.txt") if with_model else None
        await Engine(store, pool, {"scripted": proposer} if proposer else None).run()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4] == "model"))
