"""A scripted executor of one lane that writes down what it does, for executors whose lanes are processes elsewhere.

SCRIPTED_LOG names the file, SCRIPTED_RELEASE the one that lets go of what holds. More words than the scripted executor has:
`kill` ends the worker's process, `kill-once` does so the first time, `freeze` blocks it so that it hears nothing. A problem that
says `# kill` ends it in its audit and in the making of its seeds.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from scripted_executor import ScriptedExecutor

if TYPE_CHECKING:
    from kernelevo_api.types import Evaluation, Finding, Limits, ProblemReport, Seed
    from kernelevo_evaluator.executor import Executor, Job, ProblemSource, ProgressCallback
    from kernelevo_evaluator.settings import EvaluatorSettings


class ScriptedLane(ScriptedExecutor):
    """One lane, with a log on disk."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._lane = asyncio.Semaphore(self.slots)

    async def _note(self, what: str, entry: str) -> None:
        with Path(os.environ["SCRIPTED_LOG"]).open("a") as log:
            log.write(f"{what} {entry}\n")
        await super()._note(what, entry)

    async def audit(
        self, problem: ProblemSource, limits: Limits, accept_refused: bool, progress: ProgressCallback
    ) -> ProblemReport:
        _perhaps_kill(problem)
        return await super().audit(problem, limits, accept_refused, progress)

    async def seeds(
        self, problem: ProblemSource, limits: Limits, progress: ProgressCallback
    ) -> tuple[tuple[Seed, ...], tuple[Finding, ...]]:
        _perhaps_kill(problem)
        return await super().seeds(problem, limits, progress)

    async def evaluate(self, job: Job, progress: ProgressCallback) -> Evaluation:
        async with self._lane:
            return await super().evaluate(job, progress)

    async def _follow(self, script: str, job: Job, progress: ProgressCallback) -> Evaluation:
        words = script.split()
        seen = Path(os.environ["SCRIPTED_LOG"]).read_text().splitlines().count(f"started {script}")
        if "kill" in words or ("kill-once" in words and seen == 1):
            os.kill(os.getpid(), signal.SIGKILL)
        if "freeze" in words:
            time.sleep(600)
        return await super()._follow(script, job, progress)


def _perhaps_kill(problem: ProblemSource) -> None:
    if "# kill" in problem.source:
        os.kill(os.getpid(), signal.SIGKILL)


async def open_lane(settings: EvaluatorSettings) -> Executor:
    return ScriptedLane()


async def open_wide_lane(settings: EvaluatorSettings) -> Executor:
    """A lane on which two calls are useful at once."""
    return ScriptedLane(slots=2)
