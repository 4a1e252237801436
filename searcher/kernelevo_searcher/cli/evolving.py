"""`kernelevo evolve`: a run, new or resumed, to its end."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path  # noqa: TC003 - typer resolves it
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelevo_api.errors import EvaluatorError, ProblemRefused
from kernelevo_api.json import to_json
from kernelevo_api.pool import NoEvaluator, describe
from kernelevo_searcher import runs
from kernelevo_searcher.best import write_best
from kernelevo_searcher.candidates import elsewhere_line, proves_speedup
from kernelevo_searcher.catalogue import find_problem
from kernelevo_searcher.cli.common import (
    NOT_DONE,
    NOT_PASSED,
    AcceptOption,
    BaselineOption,
    EvaluatorOption,
    Exit,
    JsonOption,
    LevelOption,
    ProblemIdOption,
    app,
    checked_baseline,
    reported_errors,
    settings_from,
)
from kernelevo_searcher.cli.interrupts import run_draining
from kernelevo_searcher.display import ledger_lines, open_display
from kernelevo_searcher.drain import Drain
from kernelevo_searcher.inputs import BadInput, read_candidate, read_text
from kernelevo_searcher.mechanisms import Mechanism, PolicyName  # noqa: TC001 - typer resolves them
from kernelevo_searcher.memory.bank import read_bank
from kernelevo_searcher.state import replay
from kernelevo_searcher.store import read_records
from kernelevo_searcher.wording import plain, ratio_text

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from kernelevo_api.types import DeviceRequirement
    from kernelevo_searcher.candidates import Elsewhere
    from kernelevo_searcher.display import Display
    from kernelevo_searcher.settings import SearcherSettings
    from kernelevo_searcher.spending import SpendingRow
    from kernelevo_searcher.state import RunState

__all__ = ["advice", "evolve"]

_WRITTEN_OTHERWISE = frozenset({"prompts", "memory", "verify_on"})
"""Settings that a run's log holds in another form."""


@app.command(
    epilog="Exit code: 0 a speedup was proved (its whole interval lies above 1) on every kind of device that was asked for, 1 no "
    "kernel passed or none was proved to be faster, 2 usage or a refused problem, 3 interrupted or no evaluator."
)
def evolve(
    problem: Annotated[
        str | None,
        typer.Argument(
            metavar="PROBLEM",
            help="the reference: a file, or a collection with --level and --problem-id; not needed with --resume",
        ),
    ] = None,
    level: LevelOption = None,
    problem_id: ProblemIdOption = None,
    start: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="a kernel to begin from (repeatable)")
    ] = None,
    evaluations: Annotated[
        int | None, typer.Option(min=1, help="candidates to evaluate at most [default: 60 without a model]")
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="time the search may take")] = None,
    budget_tokens: Annotated[
        int | None, typer.Option(min=0, help="tokens the model may cost [default: 1000000]")
    ] = None,
    budget_dollars: Annotated[float | None, typer.Option(help="dollars the models may cost")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[,KEY=VALUE…]",
            help="a model that writes kernels (repeatable; keys e.g. role=strong|cheap, weight, base_url, api_key_env, "
            "reasoning_effort, price=IN/OUT); default: tune only",
        ),
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(metavar="URL", help="OpenAI-compatible endpoint, e.g. http://localhost:8000/v1")
    ] = None,
    api_key_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="environment variable that holds the key, never the key itself")
    ] = None,
    target_speedup: Annotated[float | None, typer.Option(help="stop once this is certain")] = None,
    baseline: BaselineOption = None,
    hints: Annotated[str | None, typer.Option(help="advice to the model, in your own words")] = None,
    hint: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="a text file with advice to the model (repeatable)")
    ] = None,
    memory: Annotated[
        Path | None,
        typer.Option(metavar="BANK", help="tell the model what earlier runs taught (see kernelevo memory)"),
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(metavar="DIR", help="folder of templates that replace the built-in ones")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="of everything random in the search [default: 0]")] = None,
    policy: Annotated[
        PolicyName | None, typer.Option(help="how the search chooses; the others are baselines [default: evolve]")
    ] = None,
    without: Annotated[
        list[Mechanism] | None, typer.Option(help="leave this part of the policy out, to see its worth (repeatable)")
    ] = None,
    evaluator: EvaluatorOption = None,
    device: Annotated[
        str | None,
        typer.Option(metavar="WHAT", help="what to measure on, e.g. kind=cuda,memory=80GiB,architecture=sm_90"),
    ] = None,
    verify_on: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHAT", help="verify the winner on this kind of device too, written as for --device (repeatable)"
        ),
    ] = None,
    run: Annotated[
        Path | None, typer.Option("--run", metavar="DIR", help="folder of the new run [default: runs/PROBLEM-TIME]")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="RUN", help="go on with a run; further flags change its settings")
    ] = None,
    no_run: Annotated[
        bool, typer.Option("--no-run", help="only make the run: nothing is asked or measured yet (see kernelevo ask)")
    ] = False,
    accept_refused: AcceptOption = False,
    as_json: JsonOption = False,
) -> None:
    """Search for a faster kernel, and verify the best one from scratch.

    Without a model the parameters of your own kernel are tuned: constants, #defines, unrolling, threads, compiler flags, and
    Triton's num_warps and num_stages. A comment `# tune: 1, 2, 4` beside a constant names its values.

    Ctrl-C, or SIGTERM, starts nothing new, waits for what is under way and tells how to go on; a second Ctrl-C stops at once.

    \b
    Examples:
      kernelevo evolve problem.py --start kernel.py --evaluations 25
      kernelevo evolve KernelBench --level 2 --problem-id 40
      kernelevo evolve problem.py --model qwen3 --base-url http://localhost:8000/v1
      kernelevo evolve problem.py --model gpt-5,role=strong --model gpt-5-mini,role=cheap --budget-dollars 5
      kernelevo evolve --resume runs/softmax-20261201-101500-3f2a --evaluations 100
    """
    flags: dict[str, Any] = {
        "evaluations": evaluations,
        "minutes": minutes,
        "budget_tokens": budget_tokens,
        "budget_dollars": budget_dollars,
        "model": tuple(model or ()),
        "base_url": base_url,
        "api_key_env": api_key_env,
        "target_speedup": target_speedup,
        "prompts": prompts,
        "memory": memory,
        "seed": seed,
        "policy": policy,
        "without": tuple(without or ()),
        "verify_on": tuple(verify_on or ()),
    }
    with reported_errors():
        flags["hints"] = advice(hints, hint)
        flags["baseline"] = checked_baseline(baseline)
        if resume is not None and (problem is not None or start or run is not None):
            raise BadInput("--resume goes on with a run as it is: leave out PROBLEM.py, --start and --run.")
        if resume is not None and device is not None:
            raise BadInput("a run stays on the kind of device that it began on: leave out --device.")
        if resume is not None and no_run:
            raise BadInput("--no-run makes a new run: leave out --resume.")
        if resume is None and problem is None:
            raise BadInput("name a problem (kernelevo evolve PROBLEM.py), or a run to go on with (--resume RUN).")
        settings = settings_from(evaluator, device=device, **flags)
        if settings.memory is not None and (resume is None or memory is not None):
            # Before anything is made or paid.
            read_bank(settings.memory)
        stream = sys.stderr if as_json else sys.stdout
        display, drain = open_display(stream), Drain()
        if resume is not None:
            run_dir = resume
            changes = _changes(flags, evaluator, settings)
            work = runs.resume(
                run_dir,
                settings,
                changes,
                observe=display.observe,
                on_progress=display.progress,
                drain=drain,
                on_forecast=display.forecast,
            )
        else:
            assert problem is not None
            task = find_problem(problem, level, problem_id)
            kernels = [(path.name, read_candidate(path, "the starting kernel")) for path in start or ()]
            run_dir = run or runs.new_run_dir(settings, task)
            if no_run:
                runs.create(task, kernels, settings, run_dir=run_dir, accept_refused=accept_refused)
                _tell_made(run_dir, as_json=as_json)
                return
            work = runs.evolve(
                task,
                kernels,
                settings,
                run_dir=run_dir,
                accept_refused=accept_refused,
                observe=display.observe,
                on_progress=display.progress,
                drain=drain,
                on_forecast=display.forecast,
            )
        stream.write(f"run: {run_dir}\n")
        stream.flush()
        with display:
            state = _until_interrupted(work, run_dir, drain, display)
        _conclude(state, run_dir, as_json=as_json)


def _tell_made(run_dir: Path, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"run": str(run_dir)}))
    else:
        typer.echo(f"run: {run_dir}\nnext: kernelevo ask {shlex.quote(str(run_dir))} --evaluations -o problem.jsonl")


def advice(words: str | None, files: list[Path] | None) -> str | None:
    """What the user says to the model, on the command line and in files; None where nothing was said."""
    parts = [words.strip()] if words else []
    parts += [read_text(path, "the hint").strip() for path in files or ()]
    return "\n\n".join(parts) if parts else None


def _changes(flags: dict[str, Any], evaluator: list[str] | None, settings: SearcherSettings) -> dict[str, object]:
    """What a resumed run is to do differently: flags alone, neither environment nor file."""
    given = {name for name, value in flags.items() if value is not None and value != ()}
    changes: dict[str, object] = {
        name: getattr(settings, name) for name in given - {"model", "base_url", "api_key_env", *_WRITTEN_OTHERWISE}
    }
    for name in given & _WRITTEN_OTHERWISE:
        changes[name] = getattr(settings.run_settings(), name)
    if "model" in given:
        changes["models"] = settings.models()
    elif given & {"base_url", "api_key_env"}:
        # The run's models, at another endpoint.
        changes["endpoint"] = {name: flags[name] for name in given & {"base_url", "api_key_env"}}
    if evaluator:
        changes["evaluators"] = tuple(evaluator)
    return changes


def _until_interrupted(work: Coroutine[Any, Any, RunState], run_dir: Path, drain: Drain, display: Display) -> RunState:
    try:
        return run_draining(work, drain, display.draining)
    except KeyboardInterrupt:
        raise Exit(NOT_DONE, f"stopped at once; {_cut_off(run_dir)}. Go on with: {_to_resume(run_dir)}") from None
    except (EvaluatorError, NoEvaluator) as error:
        if isinstance(error, ProblemRefused):
            raise
        raise Exit(NOT_DONE, f"{error}\nNothing is lost. Once that is mended: {_to_resume(run_dir)}") from error


def _to_resume(run_dir: Path) -> str:
    return f"kernelevo evolve --resume {shlex.quote(str(run_dir))}"


def _cut_off(run_dir: Path) -> str:
    """What becomes of what was under way."""
    state = replay(read_records(run_dir))
    lost = []
    if state.calls:
        reserved = sum(call.reserved_tokens for call in state.calls.values())
        lost.append(f"{len(state.calls)} model calls count with the {reserved:,} tokens reserved for them")
    if state.in_flight:
        lost.append(f"{len(state.in_flight)} evaluations are asked for again")
    return ", ".join(lost) or "nothing is lost"


def _conclude(state: RunState, run_dir: Path, *, as_json: bool) -> None:
    finished = state.finished
    best_path = write_best(run_dir)
    report_path = _write_report(run_dir, None) if state.registered is not None else None
    verified = finished is not None and finished.best_id is not None
    speedup = finished.speedup if finished is not None and verified else None
    proved = proves_speedup(speedup)
    if as_json:
        total = state.spending.total
        result: dict[str, Any] = {
            "run": str(run_dir),
            "best_kernel": str(best_path) if best_path is not None and (verified or finished is None) else None,
            "report": str(report_path) if report_path is not None else None,
            "best": finished.best_id if finished is not None else state.best_id,
            "speedup": to_json(speedup) if speedup is not None else None,
            "verified": verified,
            "proved": proved,
            "baseline": state.settings.baseline.value,
            "verified_on": [_elsewhere_row(device, found) for device, found in state.verified_elsewhere()],
            "stopped": finished.reason if finished is not None else "interrupted",
            "resume": _to_resume(run_dir) if finished is None else None,
            "evaluated": state.evaluated,
            "tokens": state.usage.total_tokens,
            "dollars": None if total.dollars_unknown else round(total.dollars, 6),
            "ledger": [_ledger_row(row) for row in state.spending.rows.values()],
        }
        typer.echo(json.dumps(result, allow_nan=False))
    else:
        for line in [*ledger_lines(state), *_result_lines(state, best_path, report_path)]:
            typer.echo(line)
    if finished is None:
        raise Exit(NOT_DONE, f"stopped; nothing is lost. Go on with: {_to_resume(run_dir)}")
    if speedup is None:
        raise Exit(NOT_PASSED, f"no kernel was verified ({finished.reason}).")
    if not proved:
        raise Exit(NOT_PASSED, "no speedup was proved: the interval of the verified kernel does not lie above 1.")
    unproved = [describe(device) for device, found in state.verified_elsewhere() if not proves_speedup(found.speedup)]
    if unproved:
        raise Exit(NOT_PASSED, f"no speedup was proved on {', '.join(unproved)}.")


def _result_lines(state: RunState, best_path: Path | None, report_path: Path | None) -> list[str]:
    """What came of the run: verified where it is finished, so far where it was stopped."""
    over = f"over {state.settings.baseline.value}"
    report = [f"report: {report_path}"] if report_path is not None else []
    if state.finished is None:
        lines = [f"{state.evaluated} candidates evaluated", *report]
        if state.best is not None and state.best.speedup is not None:
            lines.append(f"best kernel so far: {best_path}")
            lines.append(f"speedup so far, not verified: {ratio_text(state.best.speedup)} {over}")
        return lines
    speedup = state.finished.speedup
    if state.finished.best_id is None or speedup is None:
        return report
    said = "verified speedup" if proves_speedup(speedup) else "no speedup was proved"
    elsewhere = [elsewhere_line(device, found) for device, found in state.verified_elsewhere()]
    return [f"best kernel: {best_path}", *report, f"{said}: {ratio_text(speedup)} {over}", *elsewhere]


def _elsewhere_row(device: DeviceRequirement, found: Elsewhere) -> dict[str, Any]:
    return {
        "device": to_json(device),
        "verdict": found.evaluation.verdict.value if found.evaluation is not None else None,
        "speedup": to_json(found.speedup) if found.speedup is not None else None,
        "proved": proves_speedup(found.speedup),
        "trouble": found.trouble,
    }


def _ledger_row(row: SpendingRow) -> dict[str, Any]:
    return {
        "action": row.action,
        "model": row.model,
        "calls": row.calls,
        "candidates": row.useful,
        "without_reply": row.failed,
        "prompt_tokens": row.usage.prompt_tokens,
        "cached_tokens": row.usage.cached_tokens,
        "completion_tokens": row.usage.completion_tokens,
        "reasoning_tokens": row.usage.reasoning_tokens,
        "estimated": row.usage.estimated,
        "dollars": None if row.dollars_unknown else round(row.dollars, 6),
    }


def _write_report(run_dir: Path, output: Path | None) -> Path | None:
    """The report is an extra: a run whose report cannot be written is still a run."""
    try:
        from kernelevo_searcher.report import write_report

        path: Path = write_report(run_dir, output)
    except Exception as error:
        typer.echo(f"kernelevo: the report could not be written: {plain(str(error))}", err=True)
        return None
    return path
