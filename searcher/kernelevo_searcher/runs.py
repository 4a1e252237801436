"""What the command line and Python users share: evaluating once, and starting and resuming runs.

Nothing here prints or exits; what goes wrong is an exception whose message says what to do.
"""

from __future__ import annotations

import os
import re
import secrets
import uuid
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from kernelevo_api.errors import CallRefused
from kernelevo_api.pool import NotEvaluated
from kernelevo_api.types import BaselineKind, Candidate, Effort, EvaluateRequest, Problem
from kernelevo_searcher.batch.run import BatchRun
from kernelevo_searcher.drain import Drain
from kernelevo_searcher.engine import Engine, start_events
from kernelevo_searcher.evaluators import open_evaluators
from kernelevo_searcher.inputs import BadInput
from kernelevo_searcher.open_models import OpenModels, open_models
from kernelevo_searcher.state import RunState, replay
from kernelevo_searcher.store import RunStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from kernelevo_api.pool import EvaluatorPool
    from kernelevo_api.types import Evaluation, Progress
    from kernelevo_searcher.events import Record, RunSettings
    from kernelevo_searcher.forecast import Forecast
    from kernelevo_searcher.settings import SearcherSettings

__all__ = [
    "changed_settings",
    "create",
    "evaluate",
    "evolve",
    "make",
    "new_run_dir",
    "open_batch",
    "package_version",
    "resume",
]

_PATIENCE_S = 30.0
"""How long a single evaluation waits for an evaluator that went away; a run waits as long as it takes."""


def package_version() -> str:
    """Version of the installed distribution."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("kernelevo")
    except PackageNotFoundError:
        return "unknown"


def new_run_dir(settings: SearcherSettings, problem: Problem) -> Path:
    """A folder for a new run: problem, time in UTC, and a few characters that make it unique."""
    return settings.runs_dir / unique_name(folder_name(problem.name))


def folder_name(name: str) -> str:
    """A name as one folder's."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.") or "run"


def unique_name(name: str) -> str:
    """With the time in UTC, and a few characters that tell apart what begins at the same second."""
    return f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


# Once.


async def evaluate(
    problem: Problem,
    candidate: str,
    settings: SearcherSettings,
    *,
    folder: Path,
    effort: Effort = Effort.FULL,
    against: str | None = None,
    fresh: bool = False,
    accept_refused: bool = False,
    profile: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
) -> Evaluation:
    """Have one candidate judged.

    Args:
        folder: for an evaluator of our own, where none is named.
        against: source of another candidate to compare with, instead of the settings' baseline.
        profile: record where a call's time goes, too.

    Raises:
        NoEvaluator, EvaluatorError: it was not evaluated.
    """
    async with open_evaluators(settings.evaluators, settings, folder) as pool:
        await pool.connect(device=settings.device_requirement)
        report = await pool.register(problem, accept_refused=accept_refused, on_progress=on_progress)
        request = EvaluateRequest(
            request_id=str(uuid.uuid4()),
            problem_digest=report.problem_digest,
            candidate=Candidate(source=candidate, language=settings.language),
            effort=effort,
            baseline=BaselineKind.CANDIDATE if against is not None else settings.baseline,
            baseline_candidate=Candidate(source=against) if against is not None else None,
            device=pool.device,
            fresh=fresh,
            accept_refused_problem=accept_refused,
            profile=profile,
        )
        try:
            return await pool.evaluate(request, on_progress=on_progress, patience_s=_PATIENCE_S)
        except NotEvaluated as error:
            if isinstance(error.__cause__, CallRefused):
                # The evaluator's own words: there is a person to read them.
                raise error.__cause__ from error
            raise


# Runs.


async def evolve(
    problem: Problem,
    start: Sequence[tuple[str, str]],
    settings: SearcherSettings,
    *,
    run_dir: Path,
    accept_refused: bool = False,
    observe: Callable[[Record, RunState], None] | None = None,
    on_progress: Callable[[str, Progress], None] | None = None,
    drain: Drain | None = None,
    on_forecast: Callable[[Forecast], None] | None = None,
) -> RunState:
    """A new run, to its end; or, where `drain` asks for it, until what is under way has come back.

    Raises:
        StoreError: the folder cannot be used.
        NoEvaluator, EvaluatorError, BadInput: the run could not go on; it can be resumed if it had begun.
    """
    run = replace(settings.run_settings(), accept_refused_problem=accept_refused)
    models = open_models(run, os.environ)
    event, texts = start_events(version=package_version(), problem=problem, settings=run, start=start)
    with RunStore.create(run_dir) as store:
        store.append(event, texts=texts)
        return await _work(store, run, settings, models, observe, on_progress, drain or Drain(), on_forecast)


def create(
    problem: Problem,
    start: Sequence[tuple[str, str]],
    settings: SearcherSettings,
    *,
    run_dir: Path,
    accept_refused: bool = False,
) -> None:
    """A new run that nobody works on yet: it is gone on with by `resume`, or by files.

    Raises:
        StoreError: the folder cannot be used.
        BadInput: a model cannot be used as it is set up.
    """
    run = replace(settings.run_settings(), accept_refused_problem=accept_refused)
    open_models(run, os.environ, keys=False)
    make(problem, start, run, run_dir=run_dir)


def make(problem: Problem, start: Sequence[tuple[str, str]], run: RunSettings, *, run_dir: Path) -> None:
    """A new run on disk, of settings that were looked at before.

    Raises:
        StoreError: the folder cannot be used.
    """
    event, texts = start_events(version=package_version(), problem=problem, settings=run, start=start)
    with RunStore.create(run_dir) as store:
        store.append(event, texts=texts)


@contextmanager
def open_batch(run_dir: Path) -> Iterator[BatchRun]:
    """A run to work on by files.

    Raises:
        RunNotFound, RunInUse: there is none, or somebody else is at it.
        BadInput: one of its models cannot be used as it is set up.
    """
    with RunStore.open(run_dir) as store:
        yield BatchRun(store, open_models(replay(store.records()).settings, os.environ, keys=False))


async def resume(
    run_dir: Path,
    settings: SearcherSettings,
    changes: Mapping[str, object],
    *,
    observe: Callable[[Record, RunState], None] | None = None,
    on_progress: Callable[[str, Progress], None] | None = None,
    drain: Drain | None = None,
    on_forecast: Callable[[Forecast], None] | None = None,
    pool: EvaluatorPool | None = None,
) -> RunState:
    """Go on with a run.

    Args:
        drain: asks it to end early, once what is under way has come back.
        pool: evaluators that are open already, and stay open; absent: those of the run's settings.
        changes: settings of the run to change, by name; all others are as they were. "endpoint" changes fields of
            each of its models.

    Raises:
        RunNotFound, RunInUse: there is none, or somebody else is at it.
        BadInput: prompts of it are out in files.
    """
    with RunStore.open(run_dir) as store:
        before = replay(store.records())
        out = [call for call in before.calls.values() if call.body_digest is not None]
        if out:
            raise BadInput(
                f"{len(out)} prompts of this run are out, in files. Read their replies in with `kernelevo tell {run_dir}`, or "
                f"give them up: kernelevo tell {run_dir} --give-up all"
            )
        run = changed_settings(before.settings, dict(changes))
        if before.finished is not None and run == before.settings:
            return before
        models = open_models(run, os.environ)
        return await _work(store, run, settings, models, observe, on_progress, drain or Drain(), on_forecast, pool)


def changed_settings(run: RunSettings, changes: dict[str, Any]) -> RunSettings:
    """What a resumed run goes on with; "endpoint" changes fields of each of its models."""
    changes = dict(changes)
    endpoint = changes.pop("endpoint", {})
    run = replace(run, **changes)
    return replace(run, models=tuple(replace(model, **endpoint) for model in run.models)) if endpoint else run


async def _work(
    store: RunStore,
    run: RunSettings,
    settings: SearcherSettings,
    models: OpenModels,
    observe: Callable[[Record, RunState], None] | None,
    on_progress: Callable[[str, Progress], None] | None,
    drain: Drain,
    on_forecast: Callable[[Forecast], None] | None,
    pool: EvaluatorPool | None = None,
) -> RunState:
    try:
        async with AsyncExitStack() as stack:
            if pool is None:
                opened = open_evaluators(run.evaluators, settings, store.run_dir / "evaluator")
                async with drain.preparing():
                    pool = await stack.enter_async_context(opened)
            if drain.asked or pool is None:
                return replay(store.records())
            engine = Engine(
                store,
                pool,
                models.proposers,
                cost=models.cost,
                observe=observe,
                on_progress=on_progress,
                settings=run,
                drain=drain,
                on_forecast=on_forecast,
            )
            return await engine.run()
    finally:
        await models.aclose()
