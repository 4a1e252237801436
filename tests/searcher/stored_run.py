"""A finished run of a real problem and a real kernel, whose measurements are made up: what stands for a search in tests of what
comes after one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.searcher.scripted_evaluator import ScriptedEvaluator

from kernelevo_api.pool import Endpoint, EvaluatorPool
from kernelevo_api.types import ErrorBudget, Problem, ProblemReport, TensorInfo
from kernelevo_searcher.engine import Engine, start_events
from kernelevo_searcher.events import RunSettings
from kernelevo_searcher.store import RunStore

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["store_run"]


class _Reporting(ScriptedEvaluator):
    def __init__(self, shape: tuple[int, ...], mutates: bool, speed: float) -> None:
        super().__init__(speed=speed)
        self._shape = shape
        self._mutates = mutates

    async def register_problem(self, problem: Problem, **options: Any) -> ProblemReport:
        report = await super().register_problem(problem, **options)
        return replace(
            report,
            inputs=(TensorInfo(name="input 0", shape=self._shape, dtype="float32", bytes=4),),
            budgets=(ErrorBudget(input_class="declared", rtol=1.3e-6, atol=1e-5, norm_rtol=8e-6, source="floor"),),
            mutates_inputs=self._mutates,
        )


async def store_run(
    folder: Path,
    problem: str,
    kernel: str,
    *,
    name: str = "p",
    shape: tuple[int, ...] = (4, 8),
    mutates: bool = False,
    speed: float = 6.0,
) -> Path:
    """The run, in this folder."""
    event, texts = start_events(
        version="0",
        problem=Problem(source=problem, name=name),
        settings=RunSettings(evaluations=1),
        start=[("k", kernel)],
    )
    with RunStore.create(folder) as store:
        store.append(event, texts=texts)
        pool = EvaluatorPool([Endpoint(name="one", transport=_Reporting(shape, mutates, speed))])
        await Engine(store, pool).run()
    return folder
