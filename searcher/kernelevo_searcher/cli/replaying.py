"""`kernelevo replay`: a run carried out again from its log."""

from __future__ import annotations

import json
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelevo_searcher.cli.common import NOT_PASSED, Exit, JsonOption, RunArgument, app, reported_errors
from kernelevo_searcher.replaying import replay_into
from kernelevo_searcher.wording import plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernelevo_searcher.replaying import Replayed

__all__ = ["replay"]


@app.command(
    epilog="Exit code: 0 the log came out the same, to the byte, 1 it parted (it says where), 2 usage. A run that is under way "
    "is replayed as far as it is."
)
def replay(
    run: RunArgument,
    into: Annotated[
        Path | None, typer.Option("--into", metavar="DIR", help="keep the log that comes out as a run of its own, here")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Carry a run out again from what it recorded: every decision anew, nothing sent and nothing paid.

    Replies of models and results of evaluations are fed in as they were recorded, in their order. All else is done again: what
    to do next, what to ask, what a reply holds, when to stop. Where the log comes out otherwise, as with another version or other
    templates, it says where and in what.

    \b
    Examples:
      kernelevo replay runs/softmax-20261201-101500-3f2a
    """
    with reported_errors():
        with _folder(into) as folder:
            result = replay_into(run, folder)
        if as_json:
            typer.echo(json.dumps(_as_json(result)))
        elif result.parting is None:
            typer.echo(f"replayed {result.events} events: the log is the same, to the byte")
        else:
            parting = result.parting
            typer.echo(f"replayed {result.events} events; event {parting.sequence} came out otherwise:")
            for line in parting.differs:
                typer.echo(f"  {plain(line)}")
        if result.parting is not None:
            raise Exit(NOT_PASSED)


def _as_json(result: Replayed) -> dict[str, object]:
    parting = result.parting
    told: dict[str, object] = {"same": parting is None, "events": result.events}
    if parting is not None:
        told |= {
            "parting": {
                "event": parting.sequence,
                "recorded": json.loads(parting.recorded) if parting.recorded else None,
                "made": json.loads(parting.made) if parting.made else None,
                "differs": list(parting.differs),
            }
        }
    return told


@contextmanager
def _folder(into: Path | None) -> Iterator[Path]:
    if into is not None:
        yield into
        return
    with tempfile.TemporaryDirectory(prefix="kernelevo-") as folder:
        yield Path(folder)
