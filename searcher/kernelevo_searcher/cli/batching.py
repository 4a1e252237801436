"""`kernelevo ask`, `tell` and `answer`: a run by files, for batch APIs and for hosts without a network."""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelevo_searcher import runs
from kernelevo_searcher.batch.answering import answer as carry_out
from kernelevo_searcher.batch.answering import read_jobs
from kernelevo_searcher.batch.lines import Answer, BadLine, read_answers, read_requests
from kernelevo_searcher.batch.telling import give_up, tell_evaluations, tell_replies
from kernelevo_searcher.best import write_best
from kernelevo_searcher.cli.common import (
    NOT_PASSED,
    USAGE,
    EvaluatorOption,
    Exit,
    JsonOption,
    OutputOption,
    RunArgument,
    app,
    reported_errors,
    run_interruptibly,
    settings_from,
)
from kernelevo_searcher.evaluators import open_evaluators
from kernelevo_searcher.inputs import BadInput
from kernelevo_searcher.policy.evaluating import waiting
from kernelevo_searcher.wording import plain, ratio_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TextIO

    from kernelevo_searcher.batch.answering import Job
    from kernelevo_searcher.settings import SearcherSettings
    from kernelevo_searcher.state import RunState

__all__ = ["answer", "ask", "tell"]

EvaluationsOption = Annotated[
    bool, typer.Option("--evaluations", help="evaluations for an evaluator, rather than prompts for a model")
]
FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="a file, or - for standard input")]
_STANDARD = Path("-")


@app.command(epilog="Exit code: 0 something was asked, 1 there is nothing to ask now (it says what is next), 2 usage.")
def ask(
    run: RunArgument,
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="ask for this many more at most")] = 16,
    output: OutputOption = None,
    evaluations: EvaluationsOption = False,
    again: Annotated[
        bool, typer.Option("--again", help="write what is out and was not told yet once more, and ask for nothing new")
    ] = False,
) -> None:
    """Write what a run wants to know next: prompts in the format of OpenAI's batch API, or evaluations.

    The search's own rules choose what is asked, and its budget bounds it: each prompt reserves what it can cost at most. Read the
    answers in with `kernelevo tell`. Make a run with `kernelevo evolve PROBLEM.py --model NAME --no-run`; it asks first, with
    --evaluations, to have its problem registered.

    \b
    Examples:
      kernelevo ask runs/softmax -n 16 -o prompts.jsonl
      kernelevo ask runs/softmax --evaluations | kernelevo answer | kernelevo tell runs/softmax --evaluations
    """
    with reported_errors():
        with _writing(output) as stream, runs.open_batch(run) as batch:
            if again:
                requests = batch.evaluations_out() if evaluations else batch.prompts_out()
            else:
                requests = batch.ask_evaluations(count) if evaluations else batch.ask_prompts(count)
            for request in requests:
                stream.write(request.line() + "\n")
            left, following = batch.state.budget_left, _next_step(batch.state, run)
        what = "evaluations" if evaluations else "prompts"
        said = f"asked: {len(requests)} {what}"
        if requests and not evaluations:
            models = sorted({str(request.body["model"]) for request in requests})
            said += f" for {', '.join(models)}; {left:,} tokens are neither spent nor reserved"
        typer.echo(said, err=True)
        if not requests:
            raise Exit(NOT_PASSED, f"nothing to ask now. {following}")


@app.command(
    epilog="Exit code: 0 every line was taken or had been, 2 usage, or a line of no use (the others are taken)."
)
def tell(
    run: RunArgument,
    file: FileArgument = _STANDARD,
    evaluations: EvaluationsOption = False,
    abandoned: Annotated[
        list[str] | None,
        typer.Option("--give-up", metavar="ID", help="a custom_id that gets no answer, or all (repeatable)"),
    ] = None,
    unpaid: Annotated[
        bool, typer.Option("--unpaid", help="with --give-up: it was never sent, so that nothing was paid")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Read answers into a run: replies in the format of OpenAI's batch API, or evaluations by `kernelevo answer`.

    An answer counts once, however often it is told. Lines that cannot be used are named; the others are taken. A prompt that is
    given up is charged what was reserved for it, as nobody knows what it cost, unless it was never sent (--unpaid).

    \b
    Examples:
      kernelevo tell runs/softmax replies.jsonl
      kernelevo tell runs/softmax evaluated.jsonl --evaluations
      kernelevo tell runs/softmax --give-up all --unpaid
    """
    with reported_errors():
        if unpaid and (not abandoned or evaluations):
            raise BadInput("--unpaid is said of prompts that are given up: name them with --give-up.")
        # All of it before the run is opened: who writes the file may still be at the run.
        text = "" if abandoned else _read(file)
        with runs.open_batch(run) as batch:
            candidates = len(batch.state.candidates)
            told: dict[str, Any]
            bad: Sequence[BadLine] = ()
            if abandoned:
                told = {"given_up": give_up(batch, abandoned, evaluations=evaluations, unpaid=unpaid)}
            else:
                result = (tell_evaluations if evaluations else tell_replies)(batch, read_answers(text))
                bad = result.bad
                told = {"taken": result.taken, "failed": result.failed, "told_before": result.repeated}
                told["unusable"] = len(bad)
            batch.settle()
            state = batch.state
            if not evaluations:
                told["candidates"] = len(state.candidates) - candidates
            told["tokens"] = state.usage.total_tokens
        for line in bad:
            typer.echo(f"kernelevo: {file}:{line.number}: {plain(line.reason)}", err=True)
        _conclude(state, run, told, as_json=as_json)
        if bad:
            raise Exit(USAGE, f"{len(bad)} lines were not taken; tell them again once they are mended.")


@app.command(
    epilog="Exit code: 0 every request has an answer, 2 usage or a line of no use, 3 the evaluators went away."
)
def answer(
    file: FileArgument = _STANDARD,
    output: OutputOption = None,
    evaluator: EvaluatorOption = None,
) -> None:
    """Carry out the evaluations of a file on this host, and write the answers for `kernelevo tell --evaluations`.

    The file is all that is needed; this host needs no network. Answers are added to the output as they come: the same command,
    once more, goes on where it was stopped.

    \b
    Examples:
      kernelevo answer evaluations.jsonl -o evaluated.jsonl
      kernelevo answer evaluations.jsonl -o evaluated.jsonl --evaluator gpu1:50051
    """
    with reported_errors():
        settings = settings_from(evaluator)
        jobs, bad = read_jobs(read_requests(_read(file)))
        done = _answered(output)
        left = [job for job in jobs if job.custom_id not in done]
        for line in bad:
            typer.echo(f"kernelevo: {file}:{line.number}: {plain(line.reason)}", err=True)
        with _adding(output) as stream, tempfile.TemporaryDirectory(prefix="kernelevo-") as folder:
            run_interruptibly(_carry_out(left, settings, Path(folder), stream))
        typer.echo(f"answered: {len(left)}, and {len(jobs) - len(left)} before", err=True)
        if bad:
            raise Exit(USAGE, f"{len(bad)} lines are no requests; the others are answered.")


async def _carry_out(jobs: Sequence[Job], settings: SearcherSettings, folder: Path, stream: TextIO) -> None:
    def write(line: str) -> None:
        stream.write(line + "\n")
        stream.flush()

    if jobs:
        async with open_evaluators(settings.evaluators, settings, folder) as pool:
            await carry_out(jobs, pool, write)


def _conclude(state: RunState, run: Path, told: dict[str, Any], *, as_json: bool) -> None:
    best = write_best(run)
    finished, speedup = state.finished, state.best.speedup if state.best is not None else None
    if finished is not None:
        speedup = finished.speedup
    following = _next_step(state, run)
    if as_json:
        told |= {"finished": finished is not None, "best_kernel": str(best) if best is not None else None}
        typer.echo(json.dumps(told | {"next": following}))
        return
    typer.echo(", ".join(f"{name.replace('_', ' ')}: {count:,}" for name, count in told.items()))
    if best is not None and speedup is not None:
        said = "verified" if finished is not None else "so far, not verified"
        typer.echo(f"best kernel, {said}: {best}, {ratio_text(speedup)} over {state.settings.baseline.value}")
    typer.echo(following)


def _next_step(state: RunState, run: Path) -> str:
    """What a person does next."""
    name = shlex.quote(str(run))
    if state.finished is not None:
        return f"The run is finished: {state.finished.reason}."
    evaluations = f"kernelevo ask {name} --evaluations"
    if state.registered is None:
        return f"Next, have the problem registered: {evaluations}"
    waits, out = len(waiting(state)), []
    if state.calls:
        out.append(f"{len(state.calls)} prompts")
    if state.in_flight:
        out.append(f"{len(state.in_flight)} evaluations")
    if waits:
        return f"Next: {evaluations} ({waits} candidates wait to be measured)"
    if out:
        return f"Out, not told yet: {' and '.join(out)}."
    if state.stop is not None:
        return f"The search is over ({state.stop.reason}). Next, what is left to be measured: {evaluations}"
    return f"Next: kernelevo ask {name}, or {evaluations}" if state.settings.models else f"Next: {evaluations}"


# Files.


def _read(path: Path) -> str:
    try:
        if path == _STANDARD:
            return sys.stdin.buffer.read().decode("utf-8")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8 text ({error.reason} at byte {error.start}).") from error
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.") from error


@contextmanager
def _writing(output: Path | None) -> Iterator[TextIO]:
    """Where requests go: a file takes its place once it is whole, and is known to be writable before anything is asked."""
    if output is None:
        yield sys.stdout
        return
    partial = output.with_name(f".{output.name}.partial")
    try:
        with partial.open("w", encoding="utf-8") as stream:
            yield stream
        partial.replace(output)
    except OSError as error:
        raise BadInput(f"{output} cannot be written: {error.strerror}. What is out is written by --again.") from error
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def _adding(output: Path | None) -> Iterator[TextIO]:
    if output is None:
        yield sys.stdout
        return
    try:
        with output.open("a+", encoding="utf-8") as stream:
            stream.seek(0)
            written = stream.read()
            if written and not written.endswith("\n"):
                # The last process was stopped within a line.
                stream.write("\n")
            yield stream
    except OSError as error:
        raise BadInput(f"{output} cannot be written: {error.strerror}.") from error


def _answered(output: Path | None) -> set[str]:
    if output is None or not output.exists():
        return set()
    answers = read_answers(_read(output))
    return {one.custom_id for one in answers if isinstance(one, Answer)}
