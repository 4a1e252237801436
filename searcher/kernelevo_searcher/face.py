"""`kernelevo.evaluate` and `kernelevo.evolve`: what the command does, for Python programs."""

from __future__ import annotations

import asyncio
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kernelevo_api.types import Effort
from kernelevo_searcher import runs
from kernelevo_searcher.best import BestKernel, best_kernel
from kernelevo_searcher.catalogue import find_problem
from kernelevo_searcher.inputs import read_candidate
from kernelevo_searcher.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from kernelevo_api.types import Evaluation

__all__ = ["evaluate", "evolve", "wait_for"]

T = TypeVar("T")


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, also where this thread has an event loop already, as a notebook's has: then in a thread of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1, thread_name_prefix="kernelevo") as thread:
        return thread.submit(asyncio.run, work).result()


def evaluate(
    problem: str | Path,
    candidate: str | Path,
    *,
    level: int | None = None,
    problem_id: int | None = None,
    effort: Effort = Effort.FULL,
    **settings: Any,
) -> Evaluation:
    """Have one candidate judged, by an evaluator started for it unless `evaluators` names some.

    Args:
        problem: path of the problem's file; or, with `level` and `problem_id`, of a checkout of KernelBench, or `hf:OWNER/NAME`.
        candidate: path of the candidate's file.
        settings: any of `SearcherSettings`, e.g. `evaluators=("host:50051",)`.

    Raises:
        BadInput: a file that cannot be used.
        NoEvaluator, EvaluatorError: it was not evaluated.
    """
    task, source = find_problem(problem, level, problem_id), read_candidate(Path(candidate))
    with tempfile.TemporaryDirectory(prefix="kernelevo-", ignore_cleanup_errors=True) as folder:
        return wait_for(runs.evaluate(task, source, load_settings(**settings), folder=Path(folder), effort=effort))


def evolve(
    problem: str | Path,
    *,
    level: int | None = None,
    problem_id: int | None = None,
    start: Sequence[str | Path] = (),
    run_dir: str | Path | None = None,
    **settings: Any,
) -> BestKernel | None:
    """Search for a faster kernel; returns the best, verified from scratch, or None where none was.

    Args:
        problem: path of the problem's file; or, with `level` and `problem_id`, of a checkout of KernelBench, or `hf:OWNER/NAME`.
        start: paths of kernels to begin from.
        run_dir: folder of the run; chosen under `runs_dir` where it is not given.
        settings: any of `SearcherSettings`, e.g. `evaluations=25`.

    Raises:
        BadInput: a file that cannot be used.
        NoEvaluator, EvaluatorError: the run could not go on.
    """
    loaded = load_settings(**settings)
    task = find_problem(problem, level, problem_id)
    kernels = [(Path(path).name, read_candidate(Path(path), "the starting kernel")) for path in start]
    folder = Path(run_dir) if run_dir is not None else runs.new_run_dir(loaded, task)
    state = wait_for(runs.evolve(task, kernels, loaded, run_dir=folder))
    if state.finished is None or state.finished.best_id is None:
        return None
    return best_kernel(folder)
