"""`kernelevo best`, `report` and `settings`: what there is to read."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from kernelevo_api.json import to_json
from kernelevo_searcher.best import BestKernel, best_kernel
from kernelevo_searcher.cli.common import (
    NOT_PASSED,
    Exit,
    JsonOption,
    OutputOption,
    RunArgument,
    app,
    reported_errors,
    settings_from,
)
from kernelevo_searcher.inputs import BadInput
from kernelevo_searcher.settings import SearcherSettings, setting_origins
from kernelevo_searcher.state import replay
from kernelevo_searcher.store import RunStore
from kernelevo_searcher.wording import ratio_text

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["best", "report", "settings"]


@app.command()
def best(
    run: RunArgument,
    output: OutputOption = None,
    torch_library: Annotated[
        bool,
        typer.Option(
            "--torch-library", help="registered as a custom operator of torch, which torch.compile takes whole"
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Print the best kernel of a run, or write it to a file that stands on its own.

    While the run goes on it is the best so far, and says that it is not verified.

    \b
    Examples:
      kernelevo best runs/softmax-20261201-101500-3f2a -o fast_softmax.py
      kernelevo best runs/softmax-20261201-101500-3f2a --torch-library -o softmax_operator.py
    """
    with reported_errors():
        kernel = best_kernel(run)
        if kernel is None:
            raise Exit(NOT_PASSED, f"nothing passed in {run} yet.")
        if torch_library:
            kernel = as_operator(run, kernel)
        if output is not None:
            try:
                output.write_text(kernel.source, encoding="utf-8")
            except OSError as error:
                raise BadInput(f"{output} cannot be written: {error.strerror}.") from error
        if as_json:
            result = {
                "candidate": kernel.candidate_id,
                "verified": kernel.verified,
                "proved": kernel.proved,
                "speedup": to_json(kernel.speedup) if kernel.speedup is not None else None,
                "path": str(output) if output is not None else None,
                "source": kernel.source,
            }
            typer.echo(json.dumps(result, allow_nan=False))
        elif output is not None:
            speedup = f", {ratio_text(kernel.speedup)}" if kernel.speedup is not None else ""
            typer.echo(f"{output}: {kernel.candidate_id}{speedup}{_caveat(kernel)}")
        else:
            typer.echo(kernel.source, nl=False)


@app.command()
def report(run: RunArgument, output: OutputOption = None) -> None:
    """Write a run's report: one HTML file that needs nothing else. Of a suite's folder, its results as they are now.

    \b
    Example:
      kernelevo report runs/softmax-20261201-101500-3f2a -o softmax.html
    """
    with reported_errors():
        from kernelevo_searcher.report import write_report
        from kernelevo_searcher.suite.folder import Suite, is_suite
        from kernelevo_searcher.suite.report import write_results

        if is_suite(run) and output is not None:
            raise BadInput(f"{run} is a suite, whose results are several files in its folder: leave out -o.")
        try:
            if is_suite(run):
                write_results(Suite.open(run))
                path = run / "report.html"
            else:
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
    with reported_errors():
        current, origins = settings_from(), setting_origins()
        for name, field in SearcherSettings.model_fields.items():
            value = getattr(current, name)
            shown = getattr(value, "value", value)
            typer.echo(f"{name} = {shown!r}  ({origins[name]})  {field.description or ''}")


def as_operator(run: Path, kernel: BestKernel) -> BestKernel:
    """The kernel with what registers it as an operator of torch.

    Raises:
        BadInput: it cannot be one.
    """
    from kernelevo_searcher.integrate.operator import operator_module

    with RunStore.open(run, read_only=True) as store:
        state = replay(store.records())
        assert state.started is not None and state.registered is not None
        reference = store.text(state.started.problem_digest)
    return replace(
        kernel, source=operator_module(kernel, state.started.problem_name, reference, state.registered.report)
    )


def _caveat(kernel: BestKernel) -> str:
    if kernel.proved:
        return ""
    return ", no speedup was proved" if kernel.verified else ", not verified"
