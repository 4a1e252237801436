"""`kernelevo memory`: banks of lessons from finished runs."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelevo_api.json import to_json
from kernelevo_api.types import DeviceKind
from kernelevo_searcher.cli.common import JsonOption, app, reported_errors
from kernelevo_searcher.inputs import BadInput
from kernelevo_searcher.memory.bank import add_to_bank, read_bank
from kernelevo_searcher.memory.distil import NotFinished, distil
from kernelevo_searcher.memory.lessons import Lesson, RunLessons, lesson_line, merged
from kernelevo_searcher.store import RunStore

if TYPE_CHECKING:
    from kernelevo_searcher.memory.lessons import Recollection

__all__ = ["memory_app"]

memory_app = typer.Typer(
    name="memory", help="Lessons of finished runs, kept in a bank that a later run may read.", no_args_is_help=True
)
app.add_typer(memory_app)

BankArgument = Annotated[Path, typer.Argument(metavar="BANK", help="file that holds the lessons, e.g. lessons.jsonl")]


@memory_app.command("add")
def add(
    bank: BankArgument,
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="folders of finished runs")],
    as_json: JsonOption = False,
) -> None:
    """Distil the lessons of finished runs into a bank; the file is made where there is none.

    No model is asked. What goes in are words of a fixed vocabulary, verdicts and measured effects: no source, no names of
    files, problems or parameters, and nothing that a person or a model wrote. A run that is in the bank is replaced.

    \b
    Examples:
      kernelevo memory add lessons.jsonl runs/softmax-20261201-101500-3f2a
      kernelevo evolve other.py --model some-model --memory lessons.jsonl
    """
    with reported_errors():
        # All of them are read before the first is written: a run that cannot be used changes nothing.
        entries = [_distilled(run) for run in runs]
        add_to_bank(bank, entries)
        known = read_bank(bank)
        if as_json:
            typer.echo(
                json.dumps({"added": [to_json(entry) for entry in entries], "runs": len(known)}, allow_nan=False)
            )
            return
        for run, entry in zip(runs, entries, strict=True):
            typer.echo(f"{run}: {len(entry.lessons)} lessons of {entry.origin.evaluated} candidates")
        typer.echo(f"{bank}: {len(known)} runs")


@memory_app.command("list")
def list_runs(bank: BankArgument, as_json: JsonOption = False) -> None:
    """List the runs in a bank, and where their lessons come from."""
    with reported_errors():
        entries = read_bank(bank)
        if as_json:
            typer.echo(json.dumps([to_json(entry) for entry in entries], allow_nan=False))
            return
        for entry in entries:
            typer.echo(_run_line(entry))


@memory_app.command("show")
def show(
    bank: BankArgument,
    kind: Annotated[str | None, typer.Option("--kind", metavar="cpu|cuda", help="only of this kind of device")] = None,
    operator: Annotated[
        list[str] | None, typer.Option(metavar="WORD", help="only of problems with this operator (repeatable)")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the lessons of a bank, those of all its runs together.

    \b
    Examples:
      kernelevo memory show lessons.jsonl --kind cuda --operator softmax
    """
    with reported_errors():
        wanted = _kind(kind)
        entries = [
            entry
            for entry in read_bank(bank)
            if (wanted is None or entry.context.device is wanted)
            and set(operator or ()) <= set(entry.context.operators)
        ]
        lessons = _together(entries)
        if as_json:
            typer.echo(json.dumps([to_json(lesson) for lesson in lessons], allow_nan=False))
            return
        for lesson in lessons:
            typer.echo(lesson_line(lesson))
        if not lessons:
            typer.echo("no lessons", err=True)


def _distilled(run: Path) -> RunLessons:
    with RunStore.open(run, read_only=True) as store:
        records = tuple(store.records())
        try:
            return distil(records, store.text(_problem(records)))
        except NotFinished:
            raise BadInput(
                f"{run} is not finished, so what it teaches is not known yet. Go on with it: kernelevo evolve --resume {run}"
            ) from None


def _problem(records: tuple[Any, ...]) -> str:
    digest: str = records[0].event.problem_digest
    return digest


def _kind(name: str | None) -> DeviceKind | None:
    try:
        return DeviceKind(name) if name is not None else None
    except ValueError:
        raise BadInput(
            f"no such kind of device: {name}. There are {', '.join(kind.value for kind in DeviceKind)}."
        ) from None


def _together(entries: list[RunLessons]) -> list[Recollection]:
    groups: dict[object, list[tuple[RunLessons, Lesson]]] = defaultdict(list)
    for entry in entries:
        for lesson in entry.lessons:
            groups[lesson.technique, lesson.language, lesson.tuned].append((entry, lesson))
    return sorted(map(merged, groups.values()), key=lambda lesson: (lesson.tuned, -lesson.tried, lesson.technique))


def _run_line(entry: RunLessons) -> str:
    origin, context = entry.origin, entry.context
    speedup = f"{origin.speedup:.2f}x" if origin.speedup is not None else "nothing verified"
    device = f"{context.device.value if context.device is not None else 'unknown'} {context.architecture}".rstrip()
    of = f"{', '.join(context.operators) or 'no known operator'}; {', '.join(context.dtypes)}; 2^{context.size} bytes"
    lessons = f"{len(entry.lessons)} lessons of {origin.evaluated} candidates"
    return f"{origin.run_id[:8]} {origin.day} {speedup}, {lessons}: {of}; {device}"
