"""The bank on disk: a text file with one line of JSON a run, which a person can read before it is given away.

Adding is one write at the file's end, so that two programs that add at once lose nothing. The last line of a run counts.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from kernelevo_api.json import from_json, to_json
from kernelevo_searcher.inputs import BadInput
from kernelevo_searcher.memory.lessons import RunLessons, check

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["add_to_bank", "read_bank"]

FORMAT = 1
_LARGEST = 64 << 20


def read_bank(path: Path) -> tuple[RunLessons, ...]:
    """The runs in a bank, in the order in which they were first added.

    Raises:
        BadInput: there is none, or a line holds what no bank of ours does.
    """
    try:
        if path.stat().st_size > _LARGEST:
            raise BadInput(f"the bank {path} is larger than {_LARGEST >> 20} MiB.")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BadInput(
            f"there is no bank {path}. Make one from finished runs: kernelevo memory add {path} RUN"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"the bank {path} cannot be read: {error}") from error
    found: dict[str, RunLessons] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
            if not isinstance(item, dict) or item.pop("format", None) != FORMAT:
                raise ValueError(f"it is not in the format {FORMAT}")
            entry = from_json(item, RunLessons)
            check(entry)
        except (ValueError, TypeError, RecursionError) as error:
            reason = "it is not JSON; was it cut off?" if isinstance(error, json.JSONDecodeError) else str(error)
            raise BadInput(f"{path}:{number} is no run's lessons: {reason}") from None
        found[entry.origin.run_id] = entry
    return tuple(found.values())


def add_to_bank(path: Path, entries: Iterable[RunLessons]) -> None:
    """Add runs; one that is there already is replaced.

    Raises:
        BadInput: the file cannot be written.
    """
    text = "".join(
        json.dumps({"format": FORMAT, **to_json(entry)}, sort_keys=True, allow_nan=False) + "\n" for entry in entries
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as file:
            written = file.write(text.encode())
    except OSError as error:
        raise BadInput(f"the bank {path} cannot be written: {error.strerror}.") from error
    if written != len(text.encode()):
        raise BadInput(f"the bank {path} could be written in part only: is the disk full? Its last line is of no use.")
