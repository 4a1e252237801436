"""The command `kernelevo`: names and exit codes are a contract.

Exit codes: 0 done (evaluate: passed; evolve: a speedup was proved), 1 done and not passed (evolve: no kernel passed, or none was
proved to be faster), 2 usage or a refused problem, 3 it could not be done, through no fault of the candidate's, or was
cancelled. Results go to standard output, errors and, with `--json`, progress to standard error.
"""

from __future__ import annotations

from typing import Annotated

import typer

from kernelevo_searcher import runs
from kernelevo_searcher.cli import (
    auditing,
    authoring,
    batching,
    benching,
    evaluating,
    evolving,
    integrating,
    problems,
    remembering,
    replaying,
    results,
)
from kernelevo_searcher.cli.common import app

__all__ = ["app", "main"]

_COMMANDS = (
    evaluating,
    evolving,
    benching,
    batching,
    problems,
    auditing,
    authoring,
    results,
    integrating,
    replaying,
    remembering,
)
"""Modules whose commands register themselves when they are imported, in the order in which `--help` lists them."""


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
