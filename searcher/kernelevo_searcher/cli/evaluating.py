"""`kernelevo evaluate` and `kernelevo compare`: one candidate judged, alone or against another."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelevo_api.json import to_json
from kernelevo_api.types import Effort, Evaluation, Verdict
from kernelevo_searcher import runs
from kernelevo_searcher.candidates import is_ours
from kernelevo_searcher.catalogue import find_problem
from kernelevo_searcher.cli.common import (
    NOT_DONE,
    NOT_PASSED,
    PASSED,
    USAGE,
    AcceptOption,
    BaselineOption,
    EvaluatorOption,
    Exit,
    JsonOption,
    LevelOption,
    ProblemArgument,
    ProblemIdOption,
    app,
    checked_baseline,
    reported_errors,
    run_interruptibly,
    settings_from,
)
from kernelevo_searcher.evaluation_text import describe_evaluation
from kernelevo_searcher.inputs import BadInput, read_candidate
from kernelevo_searcher.wording import plain, ratio_text

if TYPE_CHECKING:
    from kernelevo_api.types import Problem, Progress
    from kernelevo_searcher.settings import SearcherSettings

__all__ = ["compare", "evaluate"]


@app.command(epilog="Exit code: 0 passed, 1 evaluated and not passed, 2 usage or a refused problem, 3 not evaluated.")
def evaluate(
    problem: ProblemArgument,
    candidate: Annotated[Path, typer.Argument(metavar="CANDIDATE.py", help="the kernel: class ModelNew")],
    level: LevelOption = None,
    problem_id: ProblemIdOption = None,
    effort: Annotated[str, typer.Option(metavar="screen|full|final", help="how much to spend on it")] = "full",
    baseline: BaselineOption = None,
    evaluator: EvaluatorOption = None,
    profile: Annotated[bool, typer.Option("--profile", help="record where a call's time goes, too")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="measure again even where a result is stored")] = False,
    accept_refused: AcceptOption = False,
    as_json: JsonOption = False,
) -> None:
    """Build, check and time one candidate.

    \b
    Examples:
      kernelevo evaluate examples/softmax/problem.py my_softmax.py
      kernelevo evaluate problem.py kernel.py --effort final --json | jq .timing.speedup
      kernelevo evaluate problem.py kernel.py --profile
      kernelevo evaluate KernelBench kernel.py --level 1 --problem-id 23
    """
    with reported_errors():
        settings = settings_from(evaluator, baseline=checked_baseline(baseline))
        task = find_problem(problem, level, problem_id)
        source = read_candidate(candidate)
        evaluation = _evaluated(
            task, source, settings, effort=effort, fresh=fresh, accept_refused=accept_refused, profile=profile
        )
        if as_json:
            typer.echo(json.dumps(to_json(evaluation), allow_nan=False))
        else:
            typer.echo(describe_evaluation(evaluation, over=settings.baseline.value))
        raise Exit(_exit_code(evaluation))


@app.command(epilog="Exit code: 0 B passed, 1 B did not pass, 2 usage or a refused problem, 3 not evaluated.")
def compare(
    problem: ProblemArgument,
    a: Annotated[Path, typer.Argument(metavar="A.py", help="the candidate to compare with")],
    b: Annotated[Path, typer.Argument(metavar="B.py", help="the candidate that is judged")],
    level: LevelOption = None,
    problem_id: ProblemIdOption = None,
    effort: Annotated[str, typer.Option(metavar="screen|full|final", help="how much to spend on it")] = "full",
    evaluator: EvaluatorOption = None,
    accept_refused: AcceptOption = False,
    as_json: JsonOption = False,
) -> None:
    """Time candidate B against candidate A, side by side, and say whether it is faster.

    \b
    Example:
      kernelevo compare problem.py yesterday.py today.py
    """
    with reported_errors():
        settings = settings_from(evaluator)
        task = find_problem(problem, level, problem_id)
        source_a, source_b = read_candidate(a, "candidate A"), read_candidate(b, "candidate B")
        evaluation = _evaluated(
            task, source_b, settings, effort=effort, against=source_a, accept_refused=accept_refused
        )
        outcome = _comparison(evaluation)
        if as_json:
            typer.echo(json.dumps({"outcome": outcome, "evaluation": to_json(evaluation)}, allow_nan=False))
        elif evaluation.timing is not None and evaluation.timing.speedup is not None and outcome != "not_compared":
            ratio = ratio_text(evaluation.timing.speedup)
            said = {"faster": "faster than", "slower": "slower than", "indistinguishable": "indistinguishable from"}
            typer.echo(f"{b} is {said[outcome]} {a}: {ratio}")
        else:
            typer.echo(describe_evaluation(evaluation, over=str(a)))
        raise Exit(_exit_code(evaluation))


def _comparison(evaluation: Evaluation) -> str:
    timing = evaluation.timing
    if evaluation.verdict is not Verdict.PASSED or timing is None or timing.speedup is None:
        return "not_compared"
    if timing.speedup.low > 1.0:
        return "faster"
    return "slower" if timing.speedup.high < 1.0 else "indistinguishable"


def _evaluated(
    task: Problem,
    source: str,
    settings: SearcherSettings,
    *,
    effort: str,
    accept_refused: bool,
    against: str | None = None,
    fresh: bool = False,
    profile: bool = False,
) -> Evaluation:
    """One candidate judged, with its progress shown meanwhile."""
    with tempfile.TemporaryDirectory(prefix="kernelevo-", ignore_cleanup_errors=True) as folder:
        try:
            return run_interruptibly(
                runs.evaluate(
                    task,
                    source,
                    settings,
                    folder=Path(folder),
                    effort=_effort(effort),
                    against=against,
                    fresh=fresh,
                    accept_refused=accept_refused,
                    profile=profile,
                    on_progress=_show_progress,
                )
            )
        finally:
            _wipe_progress()


def _effort(name: str) -> Effort:
    try:
        return Effort(name)
    except ValueError:
        raise BadInput(f"no such effort: {name}. There are {', '.join(effort.value for effort in Effort)}.") from None


def _exit_code(evaluation: Evaluation) -> int:
    if evaluation.verdict is Verdict.PASSED:
        return PASSED
    if evaluation.verdict is Verdict.PROBLEM_FAULT:
        return USAGE
    return NOT_DONE if is_ours(evaluation) else NOT_PASSED


def _show_progress(progress: Progress) -> None:
    """On a terminal, where an evaluation is; it is wiped by the result."""
    if sys.stderr.isatty():
        stage = progress.stage.value if progress.stage is not None else ""
        sys.stderr.write(f"\r\x1b[2K{stage} {plain(progress.message)[:100]}")
        sys.stderr.flush()


def _wipe_progress() -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[2K")
        sys.stderr.flush()
