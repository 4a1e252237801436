"""`kernelevo problem`: what can be a problem, and why not."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelevo_searcher.catalogue import find_problems, sample
from kernelevo_searcher.checking import Record, State, check, count, to_json
from kernelevo_searcher.cli.common import (
    NOT_DONE,
    NOT_PASSED,
    PASSED,
    EvaluatorOption,
    Exit,
    app,
    reported_errors,
    run_interruptibly,
    settings_from,
)
from kernelevo_searcher.evaluators import open_evaluators
from kernelevo_searcher.wording import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelevo_searcher.catalogue import Entry
    from kernelevo_searcher.checking import Checked
    from kernelevo_searcher.settings import SearcherSettings

__all__ = ["line_of", "problem_app"]

problem_app = typer.Typer(
    name="problem", help="Problems: whether an evaluator takes them, and why not.", no_args_is_help=True
)
app.add_typer(problem_app)

_NAME_WIDTH = 44
_REASON_CHARACTERS = 300


@problem_app.command(
    "check", epilog="Exit code: 0 all are taken, 1 some are not, 2 usage, 3 some could not be checked."
)
def check_problems(
    problems: Annotated[
        list[str],
        typer.Argument(
            metavar="PROBLEM...",
            help="a problem's file, a folder of problems (e.g. a checkout of KernelBench), or hf:OWNER/NAME",
        ),
    ],
    level: Annotated[list[int] | None, typer.Option(help="only of this level of KernelBench (repeatable)")] = None,
    problem_id: Annotated[list[int] | None, typer.Option(help="only with this number (repeatable)")] = None,
    draw: Annotated[
        int | None, typer.Option("--sample", metavar="N", min=1, help="so many, drawn evenly from the levels")
    ] = None,
    seed: Annotated[int, typer.Option(help="of the sample")] = 0,
    record: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="keep results here, a line each, and do not check again what it holds"),
    ] = None,
    evaluator: EvaluatorOption = None,
    device: Annotated[str | None, typer.Option(metavar="WHAT", help="what to run on, e.g. kind=cuda")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="print a JSON object a line: each problem as it is there, then the counts")
    ] = False,
) -> None:
    """Have an evaluator load and audit problems, and say of each whether it is taken, or why not.

    \b
    Examples:
      kernelevo problem check problem.py
      kernelevo problem check KernelBench --level 1 --level 2 --sample 40 --record checked.jsonl
      kernelevo problem check hf:ScalingIntelligence/KernelBench --level 1 --json
    """
    with reported_errors():
        settings = settings_from(evaluator, device=device)
        entries = [entry for place in problems for entry in find_problems(place, level or (), problem_id or ())]
        if draw is not None:
            entries = sample(entries, draw, seed)
        kept = Record(record) if record is not None else None
        told = _Teller(len(entries), as_json)
        try:
            run_interruptibly(_check(entries, settings, kept, told))
        finally:
            told.conclude()
        counts = count(told.results)
        if counts[State.NOT_CHECKED.value]:
            raise Exit(NOT_DONE)
        raise Exit(PASSED if counts[State.TAKEN.value] == len(entries) else NOT_PASSED)


async def _check(entries: Sequence[Entry], settings: SearcherSettings, record: Record | None, told: _Teller) -> None:
    with tempfile.TemporaryDirectory(prefix="kernelevo-", ignore_cleanup_errors=True) as folder:
        async with open_evaluators(settings.evaluators, settings, Path(folder)) as pool:
            await pool.connect(device=settings.device_requirement)
            await check(entries, pool, record=record, tell=told.result, begin=told.begin)


class _Teller:
    """Says each result as it comes, and the counts at the end."""

    def __init__(self, total: int, as_json: bool) -> None:
        self.results: list[Checked] = []
        self._total = total
        self._as_json = as_json

    def begin(self, name: str) -> None:
        """On a terminal, what is checked at the moment."""
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[2K{len(self.results)}/{self._total} {plain(name)[:100]}")
            sys.stderr.flush()

    def result(self, one: Checked) -> None:
        """A line for it."""
        self.results.append(one)
        self._wipe()
        sys.stdout.write(f"{json.dumps(to_json(one), allow_nan=False) if self._as_json else line_of(one)}\n")
        sys.stdout.flush()

    def conclude(self) -> None:
        """The counts, of what there is."""
        self._wipe()
        counts = count(self.results)
        if self._as_json:
            typer.echo(json.dumps({"counts": counts}))
        elif self._total > 1:
            for line in _table(counts):
                typer.echo(line)

    def _wipe(self) -> None:
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()


def line_of(one: Checked) -> str:
    """A result for people."""
    said = f"{plain(one.name):<{_NAME_WIDTH}} {one.state.value.replace('_', ' '):<12}"
    if one.state is State.TAKEN:
        eager = f"eager {one.eager_us:.1f} us" if one.eager_us is not None else ""
        return f"{said}{eager}{'  (' + ', '.join(one.remarks) + ')' if one.remarks else ''}".rstrip()
    pairs = zip(one.codes or ("",) * len(one.reasons), one.reasons, strict=False)
    why = "; ".join(f"{code}: {reason}" if code else reason for code, reason in pairs)
    return f"{said}{' '.join(plain(why).split())[:_REASON_CHARACTERS]}"


def _table(counts: dict[str, Any]) -> list[str]:
    lines = ["", f"{counts['problems']} problems"]
    lines += [
        f"  {state.value.replace('_', ' '):<14}{counts[state.value]:>5}" for state in State if counts[state.value]
    ]
    if counts["why"]:
        lines += ["why not taken", *(f"  {code:<26}{number:>5}" for code, number in counts["why"].items())]
    return lines
