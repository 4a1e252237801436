"""`kernelevo problem new`: a problem's file for somebody's own function or module, written and audited."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelevo_searcher.authoring import Wanted, write_problem
from kernelevo_searcher.catalogue import Entry
from kernelevo_searcher.checking import State, check
from kernelevo_searcher.cli.common import (
    NOT_DONE,
    USAGE,
    EvaluatorOption,
    Exit,
    app,
    reported_errors,
    run_interruptibly,
    settings_from,
)
from kernelevo_searcher.cli.problems import line_of, problem_app
from kernelevo_searcher.evaluators import open_evaluators
from kernelevo_searcher.inputs import BadInput

if TYPE_CHECKING:
    from kernelevo_searcher.checking import Checked
    from kernelevo_searcher.settings import SearcherSettings

__all__ = ["app"]


@problem_app.command(
    "new",
    epilog="Exit code: 0 written and taken (or not asked), 2 usage or a refused problem, 3 it could not be audited.",
)
def new_problem(
    definition: Annotated[
        str, typer.Argument(metavar="FILE.py:NAME", help="a function or an nn.Module class at the top level of a file")
    ],
    inputs: Annotated[
        str | None,
        typer.Option(
            metavar="ARGUMENTS",
            help="what it is called with, e.g. 'torch.randn(64, 128), causal=True', or the name of a function in the file that "
            "returns that [default: the file's get_inputs]",
        ),
    ] = None,
    init: Annotated[
        str | None,
        typer.Option(
            metavar="ARGUMENTS", help="what the module is made with, likewise [default: get_init_inputs, or nothing]"
        ),
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=N", help="a constant that the arguments are written with (repeatable)"),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=N,…", help="further sizes that candidates are checked at (repeatable)"),
    ] = None,
    dtype: Annotated[str | None, typer.Option(metavar="float32|float16|bfloat16|float64")] = None,
    math: Annotated[str | None, typer.Option(metavar="ieee|tf32")] = None,
    language: Annotated[
        list[str] | None, typer.Option(help="what candidates may be written in (repeatable) [default: any]")
    ] = None,
    rtol: Annotated[
        float | None, typer.Option(min=0, help="relative tolerance, where the honest error is not enough")
    ] = None,
    atol: Annotated[float | None, typer.Option(min=0, help="absolute tolerance, likewise")] = None,
    timing: Annotated[str | None, typer.Option(metavar="pipelined|latency")] = None,
    dynamic_weights: Annotated[
        bool, typer.Option("--dynamic-weights", help="weights may change between calls: no packing ahead")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="write here [default: NAME/problem.py]")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace a file that is there")] = False,
    audit: Annotated[bool, typer.Option("--audit/--no-audit", help="have an evaluator audit it")] = True,
    evaluator: EvaluatorOption = None,
) -> None:
    """Write a problem's file for your own function or module, and have it audited.

    The file is self-contained: it holds the definition with all that it uses of its file, its inputs, and the policy as a
    KERNELEVO literal. Inputs are drawn anew for each check: take random ones, not stored ones.

    \b
    Examples:
      kernelevo problem new layers.py:rms_norm --inputs 'torch.randn(rows, 512), torch.rand(512)' --size rows=2048 --shape rows=37
      kernelevo problem new model.py:Block --init 'Config(width=512)' --inputs make_batch --dtype bfloat16 -o block/problem.py
    """
    with reported_errors():
        file, _, name = definition.rpartition(":")
        if not file or not name:
            raise BadInput(f"{definition} names no definition: write FILE.py:NAME.")
        policy: dict[str, Any] = {
            "dtype": dtype,
            "math": math,
            "languages": language,
            "tolerance": {key: value for key, value in (("rtol", rtol), ("atol", atol)) if value is not None},
            "shapes": [_sizes(one.split(","), "--shape") for one in shape or ()],
            "dynamic_weights": dynamic_weights,
            "timing": timing,
        }
        wanted = Wanted(
            Path(file),
            name,
            inputs,
            init,
            _sizes(size or (), "--size"),
            {key: value for key, value in policy.items() if value},
        )
        settings = settings_from(evaluator)
        path = output or Path(name.lower()) / "problem.py"
        text = write_problem(wanted)
        _write(path, text, force)
        typer.echo(f"written: {path}")
        if audit:
            _conclude(run_interruptibly(_audit(path, settings)), path)


def _sizes(texts: list[str] | tuple[str, ...], option: str) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for text in texts:
        name, _, value = text.strip().partition("=")
        if not name.isidentifier() or not value.strip().isdecimal():
            raise BadInput(f"{option} {text!r} is no size: write NAME=NUMBER.")
        sizes[name] = int(value)
    return sizes


def _write(path: Path, text: str, force: bool) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise BadInput(f"{path} is there already: name another one with -o, or replace it with --force.") from None
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}.") from error


async def _audit(path: Path, settings: SearcherSettings) -> Checked:
    with tempfile.TemporaryDirectory(prefix="kernelevo-", ignore_cleanup_errors=True) as folder:
        async with open_evaluators(settings.evaluators, settings, Path(folder)) as pool:
            await pool.connect(device=settings.device_requirement)
            return (await check([Entry(str(path), path=path)], pool))[0]


def _conclude(found: Checked, path: Path) -> None:
    if found.state is State.TAKEN:
        typer.echo(line_of(found))
        typer.echo(f"search with: kernelevo evolve {path}")
    else:
        raise Exit(NOT_DONE if found.state is State.NOT_CHECKED else USAGE, line_of(found))
