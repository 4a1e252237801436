"""The command `kernelevo`: names and exit codes are a contract.

Exit codes: 0 done (evaluate: passed; evolve: a kernel was verified), 1 done and not passed, 2 usage or a refused problem, 3 it
could not be done, through no fault of the candidate's, or was cancelled. Results go to standard output, errors and, with
`--json`, progress to standard error.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer

from kernelevo_api.errors import (
    CallRefused,
    EvaluatorError,
    InvalidRequest,
    LimitTooHigh,
    ProblemRefused,
    TooLarge,
    Unsupported,
)
from kernelevo_api.json import to_json
from kernelevo_api.pool import NoEvaluator, NotEvaluated
from kernelevo_api.types import BaselineKind, Effort, Evaluation, Verdict
from kernelevo_searcher import runs
from kernelevo_searcher.display import describe_evaluation, open_display, plain, ratio_text
from kernelevo_searcher.runs import BadInput
from kernelevo_searcher.settings import SearcherSettings, SettingsInvalid, load_settings, setting_origins
from kernelevo_searcher.state import RunState, is_ours
from kernelevo_searcher.store import StoreError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from kernelevo_api.types import Progress

__all__ = ["app", "main"]

T = TypeVar("T")

PASSED, NOT_PASSED, USAGE, NOT_DONE = 0, 1, 2, 3
REPORT_FILE = "report.html"

app = typer.Typer(
    name="kernelevo",
    help="Finds a faster kernel for a PyTorch module, and proves it in an evaluator that a candidate cannot fool.\n\n"
    "A problem is a Python file with class Model, get_inputs() and get_init_inputs(); a candidate is one with class "
    "ModelNew.\n\n"
    "Begin with:  kernelevo evolve PROBLEM.py --start KERNEL.py",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ProblemArgument = Annotated[Path, typer.Argument(metavar="PROBLEM.py", help="the reference: class Model, get_inputs()")]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="folder of a run, e.g. runs/softmax-…")]
EvaluatorOption = Annotated[
    list[str] | None,
    typer.Option(
        "--evaluator",
        metavar="ADDRESS",
        help="use this evaluator: HOST:PORT (each address of the name), unix:PATH, or file:PATH with one a line and read "
        "again (repeatable); default: start one here",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="print one JSON object on standard output")]
BaselineOption = Annotated[
    str | None, typer.Option(metavar="eager|torch_compile", help="what the speedup is over [default: eager]")
]
AcceptOption = Annotated[
    bool, typer.Option("--accept-refused", help="go on although the problem's audit refuses it; every result says so")
]
OutputOption = Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="write here")]


class _Exit(Exception):
    """Ends the command with a code; the message goes to standard error."""

    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(message)
        self.code = code


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Every error that a person can do something about, as a line and an exit code."""
    try:
        yield
    except _Exit as error:
        _fail(error.code, str(error))
    except (BadInput, SettingsInvalid, StoreError) as error:
        _fail(USAGE, str(error))
    except ProblemRefused as error:
        findings = "".join(f"\n  {item.field}: {item.description}" for item in error.violations)
        _fail(USAGE, f"the problem is refused: {error}{findings}")
    except (InvalidRequest, LimitTooHigh, TooLarge, Unsupported) as error:
        _fail(USAGE, f"the evaluator refuses this: {error}")
    except CallRefused as error:
        _fail(NOT_DONE, f"not evaluated ({error.reason.value}): {error}")
    except (EvaluatorError, NoEvaluator, NotEvaluated) as error:
        _fail(NOT_DONE, str(error))
    except KeyboardInterrupt:
        _fail(NOT_DONE, "cancelled")


def _fail(code: int, message: str) -> NoReturn:
    if message:
        typer.echo(f"kernelevo: {plain(message)}", err=True)
    raise typer.Exit(code)


def _run(work: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, with SIGTERM ending the work as Ctrl-C does."""

    def interrupt(_signal: int, _frame: object) -> None:
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        return asyncio.run(work)
    finally:
        signal.signal(signal.SIGTERM, before)


def _settings(evaluator: list[str] | None = None, **flags: Any) -> SearcherSettings:
    return load_settings(evaluators=tuple(evaluator or ()), **flags)


def _effort(name: str) -> Effort:
    try:
        return Effort(name)
    except ValueError:
        raise BadInput(f"no such effort: {name}. There are {', '.join(effort.value for effort in Effort)}.") from None


def _baseline(name: str | None) -> str | None:
    if name is None or name in (BaselineKind.EAGER.value, BaselineKind.TORCH_COMPILE.value):
        return name
    raise BadInput(
        f"no such baseline: {name}. There are eager and torch_compile; for another candidate: kernelevo compare."
    )


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


@app.command(epilog="Exit code: 0 passed, 1 evaluated and not passed, 2 usage or a refused problem, 3 not evaluated.")
def evaluate(
    problem: ProblemArgument,
    candidate: Annotated[Path, typer.Argument(metavar="CANDIDATE.py", help="the kernel: class ModelNew")],
    effort: Annotated[str, typer.Option(metavar="screen|full|final", help="how much to spend on it")] = "full",
    baseline: BaselineOption = None,
    evaluator: EvaluatorOption = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="measure again even where a result is stored")] = False,
    accept_refused: AcceptOption = False,
    as_json: JsonOption = False,
) -> None:
    """Build, check and time one candidate.

    \b
    Examples:
      kernelevo evaluate examples/softmax/problem.py my_softmax.py
      kernelevo evaluate problem.py kernel.py --effort final --json | jq .timing.speedup
    """
    with _errors():
        settings = _settings(evaluator, baseline=_baseline(baseline))
        task = runs.read_problem(problem)
        source = runs.read_candidate(candidate)
        with tempfile.TemporaryDirectory(prefix="kernelevo-", ignore_cleanup_errors=True) as folder:
            try:
                evaluation = _run(
                    runs.evaluate(
                        task,
                        source,
                        settings,
                        folder=Path(folder),
                        effort=_effort(effort),
                        fresh=fresh,
                        accept_refused=accept_refused,
                        on_progress=_show_progress,
                    )
                )
            finally:
                _wipe_progress()
        if as_json:
            typer.echo(json.dumps(to_json(evaluation), allow_nan=False))
        else:
            typer.echo(describe_evaluation(evaluation, over=settings.baseline.value))
        raise _Exit(_exit_code(evaluation))


@app.command(epilog="Exit code: 0 B passed, 1 B did not pass, 2 usage or a refused problem, 3 not evaluated.")
def compare(
    problem: ProblemArgument,
    a: Annotated[Path, typer.Argument(metavar="A.py", help="the candidate to compare with")],
    b: Annotated[Path, typer.Argument(metavar="B.py", help="the candidate that is judged")],
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
    with _errors():
        settings = _settings(evaluator)
        task = runs.read_problem(problem)
        source_a, source_b = runs.read_candidate(a, "candidate A"), runs.read_candidate(b, "candidate B")
        with tempfile.TemporaryDirectory(prefix="kernelevo-", ignore_cleanup_errors=True) as folder:
            try:
                evaluation = _run(
                    runs.evaluate(
                        task,
                        source_b,
                        settings,
                        folder=Path(folder),
                        effort=_effort(effort),
                        against=source_a,
                        accept_refused=accept_refused,
                        on_progress=_show_progress,
                    )
                )
            finally:
                _wipe_progress()
        outcome = _comparison(evaluation)
        if as_json:
            typer.echo(json.dumps({"outcome": outcome, "evaluation": to_json(evaluation)}, allow_nan=False))
        elif evaluation.timing is not None and evaluation.timing.speedup is not None and outcome != "not_compared":
            ratio = ratio_text(evaluation.timing.speedup)
            said = {"faster": "faster than", "slower": "slower than", "indistinguishable": "indistinguishable from"}
            typer.echo(f"{b} is {said[outcome]} {a}: {ratio}")
        else:
            typer.echo(describe_evaluation(evaluation, over=str(a)))
        raise _Exit(_exit_code(evaluation))


def _comparison(evaluation: Evaluation) -> str:
    timing = evaluation.timing
    if evaluation.verdict is not Verdict.PASSED or timing is None or timing.speedup is None:
        return "not_compared"
    if timing.speedup.low > 1.0:
        return "faster"
    return "slower" if timing.speedup.high < 1.0 else "indistinguishable"


@app.command(
    epilog="Exit code: 0 a kernel was verified, 1 none passed, 2 usage or a refused problem, 3 interrupted or no evaluator."
)
def evolve(
    problem: Annotated[
        Path | None, typer.Argument(metavar="PROBLEM.py", help="the reference; not needed with --resume")
    ] = None,
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
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="a model that writes kernels; default: tune only")
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
    seed: Annotated[int | None, typer.Option(help="of everything random in the search [default: 0]")] = None,
    evaluator: EvaluatorOption = None,
    device: Annotated[
        str | None,
        typer.Option(metavar="WHAT", help="what to measure on, e.g. kind=cuda,memory=80GiB,architecture=sm_90"),
    ] = None,
    run: Annotated[
        Path | None, typer.Option("--run", metavar="DIR", help="folder of the new run [default: runs/PROBLEM-TIME]")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="RUN", help="go on with a run; further flags change its settings")
    ] = None,
    accept_refused: AcceptOption = False,
    as_json: JsonOption = False,
) -> None:
    """Search for a faster kernel, and verify the best one from scratch.

    Without a model the parameters of your own kernel are tuned: constants, #defines, unrolling, threads, compiler flags, and
    Triton's num_warps and num_stages. A comment `# tune: 1, 2, 4` beside a constant names its values.

    \b
    Examples:
      kernelevo evolve problem.py --start kernel.py --evaluations 25
      kernelevo evolve problem.py --model qwen3 --base-url http://localhost:8000/v1
      kernelevo evolve --resume runs/softmax-20261201-101500-3f2a --evaluations 100
    """
    flags: dict[str, Any] = {
        "evaluations": evaluations,
        "minutes": minutes,
        "budget_tokens": budget_tokens,
        "model": model,
        "base_url": base_url,
        "api_key_env": api_key_env,
        "target_speedup": target_speedup,
        "hints": hints,
        "seed": seed,
    }
    with _errors():
        flags["baseline"] = _baseline(baseline)
        if resume is not None and (problem is not None or start or run is not None):
            raise BadInput("--resume goes on with a run as it is: leave out PROBLEM.py, --start and --run.")
        if resume is not None and device is not None:
            raise BadInput("a run stays on the kind of device that it began on: leave out --device.")
        if resume is None and problem is None:
            raise BadInput("name a problem (kernelevo evolve PROBLEM.py), or a run to go on with (--resume RUN).")
        settings = _settings(evaluator, device=device, **flags)
        stream = sys.stderr if as_json else sys.stdout
        display = open_display(stream)
        if resume is not None:
            run_dir = resume
            changes = _changes(flags, evaluator, settings)
            work = runs.resume(run_dir, settings, changes, observe=display.observe, on_progress=display.progress)
        else:
            assert problem is not None
            task = runs.read_problem(problem)
            kernels = [(path.name, runs.read_candidate(path, "the starting kernel")) for path in start or ()]
            run_dir = run or runs.new_run_dir(settings, task)
            work = runs.evolve(
                task,
                kernels,
                settings,
                run_dir=run_dir,
                accept_refused=accept_refused,
                observe=display.observe,
                on_progress=display.progress,
            )
        stream.write(f"run: {run_dir}\n")
        stream.flush()
        with display:
            state = _until_interrupted(work, run_dir)
        _conclude(state, run_dir, as_json=as_json)


def _changes(flags: dict[str, Any], evaluator: list[str] | None, settings: SearcherSettings) -> dict[str, object]:
    """What a resumed run is to do differently: flags alone, neither environment nor file."""
    changes: dict[str, object] = {name: getattr(settings, name) for name, value in flags.items() if value is not None}
    if evaluator:
        changes["evaluators"] = tuple(evaluator)
    return changes


def _until_interrupted(work: Coroutine[Any, Any, RunState], run_dir: Path) -> RunState:
    try:
        return _run(work)
    except KeyboardInterrupt:
        raise _Exit(NOT_DONE, f"stopped; nothing is lost. Go on with: kernelevo evolve --resume {run_dir}") from None
    except (EvaluatorError, NoEvaluator) as error:
        if isinstance(error, ProblemRefused):
            raise
        raise _Exit(
            NOT_DONE, f"{error}\nNothing is lost. Once that is mended: kernelevo evolve --resume {run_dir}"
        ) from error


def _conclude(state: RunState, run_dir: Path, *, as_json: bool) -> None:
    finished = state.finished
    assert finished is not None
    best_path = runs.write_best(run_dir)
    report_path = _write_report(run_dir, None)
    found = finished.best_id is not None and finished.speedup is not None
    if as_json:
        result: dict[str, Any] = {
            "run": str(run_dir),
            "best_kernel": str(best_path) if found and best_path is not None else None,
            "report": str(report_path) if report_path is not None else None,
            "best": finished.best_id,
            "speedup": to_json(finished.speedup) if finished.speedup is not None else None,
            "baseline": state.settings.baseline.value,
            "stopped": finished.reason,
            "evaluated": state.evaluated,
            "tokens": state.usage.total_tokens,
        }
        typer.echo(json.dumps(result, allow_nan=False))
    else:
        if report_path is not None and not found:
            typer.echo(f"report: {report_path}")
        if found:
            typer.echo(f"best kernel: {best_path}")
            if report_path is not None:
                typer.echo(f"report: {report_path}")
            assert finished.speedup is not None
            typer.echo(f"verified speedup: {ratio_text(finished.speedup)} over {state.settings.baseline.value}")
    if not found:
        raise _Exit(NOT_PASSED, f"no kernel was verified ({finished.reason}).")


def _write_report(run_dir: Path, output: Path | None) -> Path | None:
    """The report is an extra: a run whose report cannot be written is still a run."""
    try:
        from kernelevo_searcher.report import write_report

        path: Path = write_report(run_dir, output)
    except Exception as error:
        typer.echo(f"kernelevo: the report could not be written: {plain(str(error))}", err=True)
        return None
    return path


@app.command()
def best(run: RunArgument, output: OutputOption = None, as_json: JsonOption = False) -> None:
    """Print the best kernel of a run, or write it to a file that stands on its own.

    While the run goes on it is the best so far, and says that it is not verified.

    \b
    Example:
      kernelevo best runs/softmax-20261201-101500-3f2a -o fast_softmax.py
    """
    with _errors():
        kernel = runs.best_kernel(run)
        if kernel is None:
            raise _Exit(NOT_PASSED, f"nothing passed in {run} yet.")
        if output is not None:
            try:
                output.write_text(kernel.source, encoding="utf-8")
            except OSError as error:
                raise BadInput(f"{output} cannot be written: {error.strerror}.") from error
        if as_json:
            result = {
                "candidate": kernel.candidate_id,
                "verified": kernel.verified,
                "speedup": to_json(kernel.speedup) if kernel.speedup is not None else None,
                "path": str(output) if output is not None else None,
                "source": kernel.source,
            }
            typer.echo(json.dumps(result, allow_nan=False))
        elif output is not None:
            speedup = f", {ratio_text(kernel.speedup)}" if kernel.speedup is not None else ""
            typer.echo(f"{output}: {kernel.candidate_id}{speedup}{'' if kernel.verified else ', not verified'}")
        else:
            typer.echo(kernel.source, nl=False)


@app.command()
def report(run: RunArgument, output: OutputOption = None) -> None:
    """Write a run's report: one HTML file that needs nothing else.

    \b
    Example:
      kernelevo report runs/softmax-20261201-101500-3f2a -o softmax.html
    """
    with _errors():
        from kernelevo_searcher.report import write_report

        try:
            path = write_report(run, output)
        except OSError as error:
            raise BadInput(f"the report cannot be written: {error}") from error
        typer.echo(str(path))


@app.command()
def settings() -> None:
    """Show every setting, its value, and where the value comes from.

    A setting can be given as a flag where the command has one, as KERNELEVO_NAME in the environment, or in the [searcher] table
    of kernelevo.toml in the working folder; the first of these counts.
    """
    with _errors():
        current, origins = _settings(), setting_origins()
        for name, field in SearcherSettings.model_fields.items():
            value = getattr(current, name)
            shown = getattr(value, "value", value)
            typer.echo(f"{name} = {shown!r}  ({origins[name]})  {field.description or ''}")


def _version(value: bool) -> None:
    if value:
        typer.echo(f"kernelevo {runs.package_version()}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    del version


def main() -> None:
    """Entry point of the command."""
    app()
