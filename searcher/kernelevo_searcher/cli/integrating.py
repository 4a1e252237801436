"""`kernelevo apply`: a found kernel in the place of a definition in a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from kernelevo_searcher.best import best_kernel
from kernelevo_searcher.cli.common import (
    NOT_PASSED,
    Exit,
    JsonOption,
    RunArgument,
    app,
    reported_errors,
)
from kernelevo_searcher.cli.results import as_operator
from kernelevo_searcher.inputs import BadInput
from kernelevo_searcher.state import replay
from kernelevo_searcher.store import RunStore
from kernelevo_searcher.wording import ratio_text

__all__ = ["apply"]


@app.command(epilog="Exit code: 0 shown or written, 1 no speedup was proved, 2 usage, or nothing that can be replaced.")
def apply(
    run: RunArgument,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE[:NAME]", help="a Python file, and the class or function in it [default: as in the problem]"
        ),
    ],
    write: Annotated[bool, typer.Option("--write", help="change the file; without, only the diff is shown")] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="although no speedup was proved, or the definition is not what was searched"),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the diff that puts a run's best kernel in the place of a module or function in a file, or make the change.

    The kernel becomes a file beside it, NAME_kernel.py, registered as an operator of torch where that can be, so that
    torch.compile takes it and gradients go through the original. The definition stays; a few lines behind it put the kernel in
    its place. What stands in the file must be what was searched, helpers included. Nothing is run: try the result on data of
    your own.

    \b
    Examples:
      kernelevo apply runs/rms_norm-20261201-101500-3f2a layers.py
      kernelevo apply runs/rms_norm-20261201-101500-3f2a layers.py:RMSNorm --write
    """
    from kernelevo_searcher.integrate.replacing import replace

    with reported_errors():
        path, name = _place(file)
        kernel = best_kernel(run)
        if kernel is None:
            raise Exit(NOT_PASSED, f"nothing passed in {run} yet.")
        if not kernel.proved and not force:
            raise Exit(NOT_PASSED, "no speedup of this kernel was proved. --force takes it all the same.")
        with RunStore.open(run, read_only=True) as store:
            state = replay(store.records())
            assert state.started is not None and state.registered is not None
            problem, report = store.text(state.started.problem_digest), state.registered.report
        remark = ""
        try:
            source, operator = as_operator(run, kernel).source, True
        except BadInput as error:
            source, operator, remark = kernel.source, False, f"not an operator: {error}"
        device = state.connected.device.name if state.connected is not None else ""
        measured = (
            f"{ratio_text(kernel.speedup)} over {state.settings.baseline.value}" if kernel.speedup else "not measured"
        )
        said = " ".join(f"{measured}{f' on {device}' if device else ''}, run {state.started.run_id}.".split())
        change = replace(path, _read(path), name, problem, report, source, operator=operator, said=said, force=force)
        if write:
            try:
                # The kernel first: the other file needs it.
                change.kernel_path.write_text(change.kernel, encoding="utf-8")
                with change.path.open("w", encoding="utf-8", newline="") as stream:
                    stream.write(change.after)
            except OSError as error:
                raise BadInput(f"{error.filename} cannot be written: {error.strerror}.") from error
        if as_json:
            result = {
                "file": str(change.path),
                "kernel": str(change.kernel_path),
                "operator": operator,
                "written": write,
                "diff": change.diff(),
            }
            typer.echo(json.dumps(result))
        else:
            typer.echo(f"written: {change.path}, {change.kernel_path}" if write else change.diff().rstrip("\n"))
        if remark:
            typer.echo(f"kernelevo: {remark}", err=True)


def _place(file: str) -> tuple[Path, str | None]:
    path = Path(file)
    if path.exists():
        return path, None
    head, _, name = file.rpartition(":")
    return (Path(head), name) if head and name.isidentifier() else (path, None)


def _read(path: Path) -> str:
    if path.suffix != ".py":
        raise BadInput(f"{path} is not a Python file.")
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            return stream.read()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read: {error}") from error
