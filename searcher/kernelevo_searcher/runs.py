"""What the command line and Python users share: evaluating once, and starting, resuming and reading runs.

Nothing here prints or exits; what goes wrong is an exception whose message says what to do.
"""

from __future__ import annotations

import os
import re
import secrets
import uuid
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kernelevo_api.errors import CallRefused
from kernelevo_api.pool import NotEvaluated
from kernelevo_api.types import BaselineKind, Candidate, Effort, EvaluateRequest, Problem, Ratio
from kernelevo_searcher.engine import Engine, start_events
from kernelevo_searcher.evaluators import open_evaluators
from kernelevo_searcher.state import RunState, replay
from kernelevo_searcher.store import RunStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from kernelevo_api.types import Evaluation, Progress
    from kernelevo_searcher.events import Record, RunSettings
    from kernelevo_searcher.proposers import Proposer
    from kernelevo_searcher.settings import SearcherSettings

__all__ = [
    "BadInput",
    "BestKernel",
    "best_kernel",
    "evaluate",
    "evolve",
    "new_run_dir",
    "package_version",
    "read_candidate",
    "read_problem",
    "resume",
    "write_best",
]

OPENAI_KEY = "OPENAI_API_KEY"
BEST_FILE = "best.py"
_LARGEST_SOURCE = 8 << 20
_PATIENCE_S = 30.0
"""How long a single evaluation waits for an evaluator that went away; a run waits as long as it takes."""


class BadInput(Exception):
    """A file or an option that cannot be used; the message says what is wrong with it."""


def package_version() -> str:
    """Version of the installed distribution."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("kernelevo")
    except PackageNotFoundError:
        return "unknown"


def _read_source(path: Path, what: str) -> str:
    if not path.exists():
        raise BadInput(f"{what} {path} does not exist.")
    if path.is_dir():
        raise BadInput(f"{what} {path} is a folder; name the Python file in it.")
    if path.suffix != ".py":
        raise BadInput(f"{what} {path} is not a Python file: its name must end in .py.")
    try:
        if path.stat().st_size > _LARGEST_SOURCE:
            raise BadInput(f"{what} {path} is larger than {_LARGEST_SOURCE >> 20} MiB; it is hardly a source file.")
        source = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"{what} {path} is not UTF-8 text ({error.reason} at byte {error.start}).") from error
    except OSError as error:
        raise BadInput(f"{what} {path} cannot be read: {error.strerror}.") from error
    if not source.strip():
        raise BadInput(f"{what} {path} is empty.")
    return source


def read_problem(path: Path) -> Problem:
    """A problem from its file.

    Raises:
        BadInput: it is no file with Python in it.
    """
    name = path.parent.name if path.stem == "problem" and path.resolve().parent.name else path.stem
    return Problem(source=_read_source(path, "the problem"), name=name or path.resolve().parent.name)


def read_candidate(path: Path, what: str = "the candidate") -> str:
    """A candidate's source from its file.

    Raises:
        BadInput: it is no file with Python in it.
    """
    return _read_source(path, what)


def new_run_dir(settings: SearcherSettings, problem: Problem) -> Path:
    """A folder for a new run: problem, time in UTC, and a few characters that make it unique."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", problem.name).strip("-.") or "run"
    return settings.runs_dir / f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


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
    on_progress: Callable[[Progress], None] | None = None,
) -> Evaluation:
    """Have one candidate judged.

    Args:
        folder: for an evaluator of our own, where none is named.
        against: source of another candidate to compare with, instead of the settings' baseline.

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
        )
        try:
            return await pool.evaluate(request, on_progress=on_progress, patience_s=_PATIENCE_S)
        except NotEvaluated as error:
            if isinstance(error.__cause__, CallRefused):
                # The evaluator's own words: there is a person to read them.
                raise error.__cause__ from error
            raise


# Runs.


def _proposer(run: RunSettings, settings: SearcherSettings, environment: Mapping[str, str]) -> Proposer | None:
    if run.model is None:
        return None
    # Only a run with a model needs the model's library.
    from kernelevo_searcher.llm.endpoint import OPENAI_URL, EndpointSettings
    from kernelevo_searcher.llm.proposer import LLMProposer
    from kernelevo_searcher.llm.secret import Secret

    name = run.api_key_env or (OPENAI_KEY if run.base_url is None else None)
    key = environment.get(name, "") if name is not None else ""
    if name is not None and not key:
        raise BadInput(f"the environment variable {name} is not set; it must hold the API key for {run.model}.")
    try:
        endpoint = EndpointSettings(
            model=run.model,
            base_url=run.base_url or OPENAI_URL,
            api_key=Secret(key) if key else None,
            max_reply_tokens=settings.max_reply_tokens,
            reasoning=settings.reasoning,
            reasoning_effort=settings.reasoning_effort,
            temperature=settings.temperature,
        )
    except ValueError as error:
        raise BadInput(str(error)) from error
    return LLMProposer(endpoint, prompts=settings.prompts)


async def evolve(
    problem: Problem,
    start: Sequence[tuple[str, str]],
    settings: SearcherSettings,
    *,
    run_dir: Path,
    accept_refused: bool = False,
    observe: Callable[[Record, RunState], None] | None = None,
    on_progress: Callable[[str, Progress], None] | None = None,
) -> RunState:
    """A new run, to its end.

    Raises:
        StoreError: the folder cannot be used.
        NoEvaluator, EvaluatorError, BadInput: the run could not go on; it can be resumed if it had begun.
    """
    run = replace(settings.run_settings(), accept_refused_problem=accept_refused)
    proposer = _proposer(run, settings, os.environ)
    event, texts = start_events(version=package_version(), problem=problem, settings=run, start=start)
    with RunStore.create(run_dir) as store:
        store.append(event, texts=texts)
        return await _work(store, run, settings, proposer, observe, on_progress)


async def resume(
    run_dir: Path,
    settings: SearcherSettings,
    changes: Mapping[str, object],
    *,
    observe: Callable[[Record, RunState], None] | None = None,
    on_progress: Callable[[str, Progress], None] | None = None,
) -> RunState:
    """Go on with a run.

    Args:
        changes: settings of the run to change, by name; all others are as they were.

    Raises:
        RunNotFound, RunInUse: there is none, or somebody else is at it.
    """
    with RunStore.open(run_dir) as store:
        before = replay(store.records())
        run = replace(before.settings, **changes)  # type: ignore[arg-type]
        if before.finished is not None and run == before.settings:
            return before
        return await _work(store, run, settings, _proposer(run, settings, os.environ), observe, on_progress)


async def _work(
    store: RunStore,
    run: RunSettings,
    settings: SearcherSettings,
    proposer: Proposer | None,
    observe: Callable[[Record, RunState], None] | None,
    on_progress: Callable[[str, Progress], None] | None,
) -> RunState:
    try:
        async with open_evaluators(run.evaluators, settings, store.run_dir / "evaluator") as pool:
            engine = Engine(store, pool, proposer, observe=observe, on_progress=on_progress, settings=run)
            return await engine.run()
    finally:
        if proposer is not None:
            await proposer.aclose()


# Reading.


@dataclass(frozen=True, slots=True, kw_only=True)
class BestKernel:
    """The best of a run, as a module that stands on its own."""

    candidate_id: str
    source: str
    """With a comment at its head that says where it comes from."""
    speedup: Ratio | None
    verified: bool
    """Its speedup was measured anew at the end of the run."""


def best_kernel(run_dir: Path) -> BestKernel | None:
    """The verified kernel of a finished run, or else the best so far; None where nothing passed yet.

    Raises:
        RunNotFound: there is no run in this folder.
    """
    with RunStore.open(run_dir, read_only=True) as store:
        state = replay(store.records())
        verified = state.finished is not None and state.finished.best_id is not None
        if state.finished is not None and verified:
            best_id, speedup = state.finished.best_id, state.finished.speedup
        else:
            best_id = state.best_id
            speedup = state.best.speedup if state.best is not None else None
        if best_id is None:
            return None
        source = store.text(state.candidates[best_id].proposed.source_digest)
    header = _header(state, best_id, speedup, verified=verified)
    return BestKernel(candidate_id=best_id, source=f"{header}\n{source}", speedup=speedup, verified=verified)


def _header(state: RunState, best_id: str, speedup: Ratio | None, *, verified: bool) -> str:
    assert state.started is not None
    candidate = state.candidates[best_id]
    device = state.connected.device if state.connected is not None else None
    measured = (
        f"{speedup.value:.2f}x [{speedup.low:.2f}, {speedup.high:.2f}] over {state.settings.baseline.value}"
        if speedup is not None
        else "not measured"
    )
    lines = [
        f"Found by KernelEvo {state.started.version} for the problem {state.started.problem_name}.",
        f"{'Verified speedup' if verified else 'Speedup so far, not verified'}: {measured}.",
        f"Device: {device.name} {device.architecture}." if device is not None else "",
        f"Run {state.started.run_id}, candidate {best_id}, problem {state.started.problem_digest[:16]}, "
        f"candidate source {candidate.proposed.source_digest[:16]}.",
    ]
    # One line each, whatever the names hold: a line break would end the comment.
    return "\n".join("# " + " ".join(line.split()) for line in lines if line)


def write_best(run_dir: Path) -> Path | None:
    """Write the best kernel into the run's folder; None where there is none."""
    best = best_kernel(run_dir)
    if best is None:
        return None
    path = run_dir / BEST_FILE
    path.write_text(best.source, encoding="utf-8")
    return path
