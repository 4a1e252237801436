"""Problems out of a data set on Hugging Face, or out of a folder in that form (extra `huggingface`)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelevo_searcher.catalogue import Entry
from kernelevo_searcher.inputs import BadInput

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["entries_of"]

_SPLIT = re.compile(r"level[_-]?(\d+)")


def entries_of(name: str, levels: Sequence[int] = ()) -> list[Entry]:
    """The problems of a data set with KernelBench's columns: `code`, and where there are any `level`, `problem_id`, `name`.

    Args:
        name: OWNER/NAME on the hub, with @REVISION where it is not the newest, or the path of a folder.
        levels: of these levels, where its splits or its rows have one; none: all.

    Raises:
        BadInput: the extra is missing, the data set cannot be had, or it has no such column.
    """
    try:
        import datasets
    except ImportError:
        raise BadInput("data sets need the extra `huggingface`: pip install 'kernelevo[huggingface]'.") from None
    revision = ""
    if not Path(name).is_dir():
        name, _, revision = name.partition("@")
    datasets.disable_progress_bars()
    try:
        splits: dict[str, Any] = datasets.load_dataset(name, revision=revision or None)
    except Exception as error:  # the hub's, the network's and the readers' own kinds are many
        raise BadInput(f"the data set {name} cannot be had: {error}") from error
    entries: list[Entry] = []
    for split, rows in splits.items():
        match = _SPLIT.fullmatch(split)
        if "code" not in rows.column_names:
            raise BadInput(
                f"the data set {name} is not in KernelBench's form: its columns are {', '.join(rows.column_names)}, and "
                "none is `code`."
            )
        for row in rows:
            level = row.get("level") or (int(match[1]) if match else None)
            if not levels or level in levels:
                entries.append(_entry(row, level, len(entries)))
    return sorted(entries, key=lambda entry: (entry.level or 0, entry.number or 0, entry.name))


def _entry(row: dict[str, Any], level: int | None, place: int) -> Entry:
    number = row.get("problem_id")
    name = str(row.get("name") or (f"problem{number}" if number is not None else f"row{place}"))
    return Entry(name if level is None else f"level{level}/{name}", level, number, source=str(row["code"]))
