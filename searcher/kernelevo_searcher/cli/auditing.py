"""`kernelevo problem audit`: everything that an evaluator found out about one problem."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelevo_api.errors import InvalidRequest, ProblemRefused, TooLarge
from kernelevo_api.json import to_json
from kernelevo_searcher.audit_text import describe_refusal, describe_report
from kernelevo_searcher.catalogue import find_problem
from kernelevo_searcher.checking import why_not
from kernelevo_searcher.cli.common import (
    NOT_PASSED,
    PASSED,
    EvaluatorOption,
    Exit,
    JsonOption,
    LevelOption,
    ProblemArgument,
    ProblemIdOption,
    reported_errors,
    run_interruptibly,
    settings_from,
)
from kernelevo_searcher.cli.problems import problem_app
from kernelevo_searcher.evaluators import open_evaluators

if TYPE_CHECKING:
    from kernelevo_api.types import Problem, ProblemReport
    from kernelevo_searcher.settings import SearcherSettings

__all__ = ["audit"]


@problem_app.command("audit", epilog="Exit code: 0 taken, 1 not taken, 2 usage, 3 it could not be audited.")
def audit(
    problem: ProblemArgument,
    level: LevelOption = None,
    problem_id: ProblemIdOption = None,
    evaluator: EvaluatorOption = None,
    device: Annotated[str | None, typer.Option(metavar="WHAT", help="what to run on, e.g. kind=cuda")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what an evaluator's audit found out about a problem, or why it is not taken.

    \b
    Examples:
      kernelevo problem audit examples/softmax/problem.py
      kernelevo problem audit KernelBench --level 1 --problem-id 23 --json
    """
    with reported_errors():
        settings = settings_from(evaluator, device=device)
        asked = find_problem(problem, level, problem_id)
        try:
            report = run_interruptibly(_audited(asked, settings))
        except (ProblemRefused, InvalidRequest, TooLarge) as refused:
            _, codes, reasons = why_not(refused)
            if as_json:
                typer.echo(json.dumps({"name": asked.name, "codes": codes, "reasons": reasons}))
            else:
                told = [f"{code}: {reason}" for code, reason in zip(codes, reasons, strict=True)]
                typer.echo(describe_refusal(asked.name, told))
            raise Exit(NOT_PASSED) from None
        typer.echo(json.dumps(to_json(report), allow_nan=False) if as_json else describe_report(report))
        raise Exit(PASSED)


async def _audited(problem: Problem, settings: SearcherSettings) -> ProblemReport:
    with tempfile.TemporaryDirectory(prefix="kernelevo-", ignore_cleanup_errors=True) as folder:
        async with open_evaluators(settings.evaluators, settings, Path(folder)) as pool:
            await pool.connect(device=settings.device_requirement)
            return await pool.endpoints[0].transport.register_problem(problem)
