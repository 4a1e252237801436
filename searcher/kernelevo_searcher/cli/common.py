"""What all commands share: the application, options, exit codes, and how errors end a command."""

from __future__ import annotations

import asyncio
import contextlib
import signal
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
from kernelevo_api.pool import NoEvaluator, NotEvaluated
from kernelevo_api.types import BaselineKind
from kernelevo_searcher.inputs import BadInput
from kernelevo_searcher.settings import SearcherSettings, SettingsInvalid, load_settings
from kernelevo_searcher.store import StoreError
from kernelevo_searcher.wording import plain

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

T = TypeVar("T")

PASSED, NOT_PASSED, USAGE, NOT_DONE = 0, 1, 2, 3

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

ProblemArgument = Annotated[
    str,
    typer.Argument(
        metavar="PROBLEM",
        help="the reference: a file with class Model and get_inputs(); or, with --level and --problem-id, a checkout of "
        "KernelBench or hf:OWNER/NAME",
    ),
]
LevelOption = Annotated[int | None, typer.Option(help="level of the problem, where PROBLEM is a collection")]
ProblemIdOption = Annotated[int | None, typer.Option(help="number of the problem, where PROBLEM is a collection")]
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


class Exit(Exception):
    """Ends the command with a code; the message goes to standard error."""

    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(message)
        self.code = code


@contextlib.contextmanager
def reported_errors() -> Iterator[None]:
    """Every error that a person can do something about, as a line and an exit code."""
    try:
        yield
    except Exit as error:
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


def run_interruptibly(work: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, with SIGTERM ending the work as Ctrl-C does."""

    def interrupt(_signal: int, _frame: object) -> None:
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        return asyncio.run(work)
    finally:
        signal.signal(signal.SIGTERM, before)


def settings_from(evaluator: list[str] | None = None, **flags: Any) -> SearcherSettings:
    """The settings, with a command's flags above all else."""
    return load_settings(evaluators=tuple(evaluator or ()), **flags)


def checked_baseline(name: str | None) -> str | None:
    """A baseline that the user named.

    Raises:
        BadInput: there is none of that name.
    """
    if name is None or name in (BaselineKind.EAGER.value, BaselineKind.TORCH_COMPILE.value):
        return name
    raise BadInput(
        f"no such baseline: {name}. There are eager and torch_compile; for another candidate: kernelevo compare."
    )
