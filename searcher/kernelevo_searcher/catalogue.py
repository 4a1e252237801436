"""Where problems come from: a file, a folder of them, a list of both, a checkout of KernelBench, or a data set on Hugging Face.

Nothing here runs a problem, or copies one: what is found is named, and read when it is wanted.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kernelevo_api.types import Problem
from kernelevo_searcher.inputs import BadInput, read_problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["DATASET_PREFIX", "Entry", "find_problem", "find_problems", "sample"]

DATASET_PREFIX = "hf:"
"""What the name of a data set on Hugging Face begins with."""
LIST_SUFFIX = ".txt"
PROBLEM_FILE, START_FILE = "problem.py", "start.py"
_LEVEL_FOLDER = re.compile(r"level[_-]?(\d+)")
_NUMBERED_FILE = re.compile(r"(\d+)_.+\.py")
_SHOWN = 8
"""Entries named where a choice has to be made."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One problem of a collection."""

    name: str
    """E.g. "level1/23_Softmax"; unique within its collection."""
    level: int | None = None
    number: int | None = None
    """What `--problem-id` names: the number that KernelBench gives it within its level."""
    path: Path | None = None
    source: str = ""
    """Its text, where it lies in no file."""

    @property
    def start(self) -> Path | None:
        """The kernel of its author's that a search begins with: `start.py` beside a `problem.py`."""
        if self.path is None or self.path.name != PROBLEM_FILE:
            return None
        beside = self.path.with_name(START_FILE)
        return beside if beside.is_file() else None

    def read(self) -> Problem:
        """The problem itself.

        Raises:
            BadInput: its file cannot be read.
        """
        if self.path is None:
            return Problem(source=self.source, name=self.name)
        return Problem(source=read_problem(self.path).source, name=self.name)


def find_problems(where: str | Path, levels: Sequence[int] = (), numbers: Sequence[int] = ()) -> list[Entry]:
    """All problems there, those of these levels and with these numbers, in their order.

    Args:
        where: a file; a folder of KernelBench (a checkout, its folder `KernelBench`, or one level's), or one with `problem.py`
            at any depth; a list of such (`NAME.txt`: a path in each line, from where the list is); or
            `hf:OWNER/NAME[@REVISION]`, a data set with KernelBench's columns.

    Raises:
        BadInput: there is none, or a list names one that is not there.
    """
    place = str(where)
    if place.startswith(DATASET_PREFIX):
        from kernelevo_searcher.hub import entries_of

        found = entries_of(place.removeprefix(DATASET_PREFIX), levels)
    else:
        path = Path(where)
        if not path.is_dir():
            if levels or numbers:
                raise BadInput(f"{path} is no folder: --level and --problem-id choose a problem out of one.")
            if path.suffix == LIST_SUFFIX:
                return _listed(path)
            return [Entry(read_problem(path).name, path=path)]
        found = sorted(_in_folder(path), key=_order)
    if not found:
        raise BadInput(
            f"there is no problem in {place}: neither KernelBench's files (level1/1_….py) nor a problem.py at any depth."
        )
    chosen = [
        entry for entry in found if (not levels or entry.level in levels) and (not numbers or entry.number in numbers)
    ]
    if not chosen:
        raise BadInput(f"{place} has no problem {_asked(levels, numbers)}; {_offered(found, levels)}.")
    return chosen


def find_problem(where: str | Path, level: int | None = None, number: int | None = None) -> Problem:
    """The one problem that is meant.

    Raises:
        BadInput: there is none, or more than one.
    """
    levels, numbers = [level] if level is not None else [], [number] if number is not None else []
    entries = find_problems(where, levels, numbers)
    if len(entries) > 1:
        raise BadInput(
            f"{where} is a collection of {len(entries)} problems"
            f"{' ' + _asked(levels, numbers) if levels or numbers else ''}: name one with "
            f"{' and '.join(_missing(entries, level, number))} ({_names(entries)})."
        )
    return entries[0].read()


def sample(entries: Sequence[Entry], count: int, seed: int) -> list[Entry]:
    """So many of them, drawn by a seed and evenly from the levels, in their order."""
    generator = random.Random(seed)  # noqa: S311 - a sample that others can draw again
    groups: dict[int | None, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.level, []).append(entry)
    for group in groups.values():
        generator.shuffle(group)
    chosen: list[Entry] = []
    while len(chosen) < min(count, len(entries)):
        chosen += [group.pop() for group in groups.values() if group][: count - len(chosen)]
    places = {entry: place for place, entry in enumerate(entries)}
    return sorted(chosen, key=places.__getitem__)


def _listed(path: Path) -> list[Entry]:
    """What the lines of a list name; what stands behind a `#` is a remark."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise BadInput(f"{path} cannot be read: {error}") from error
    names = [name for line in lines if (name := line.partition("#")[0].strip())]
    found: list[Entry] = []
    for place in (path.parent / name for name in names):
        if place.suffix == LIST_SUFFIX or not place.exists():
            raise BadInput(f"{path} names {place}, which {'is a list' if place.exists() else 'is not there'}.")
        found += find_problems(place)
    if not found:
        raise BadInput(f"{path} names no problem.")
    return found


def _in_folder(folder: Path) -> Iterable[Entry]:
    for root in (folder, folder / "KernelBench"):
        levels = _level_folders(root)
        if levels:
            for level, path in levels:
                yield from _numbered(path, level)
            return
    match = _LEVEL_FOLDER.fullmatch(folder.resolve().name)
    numbered = list(_numbered(folder, int(match[1]) if match else None))
    if numbered:
        yield from numbered
        return
    for path in folder.rglob(PROBLEM_FILE):
        inside = path.parent.relative_to(folder).as_posix()
        yield Entry(inside if inside != "." else read_problem(path).name, path=path)


def _level_folders(folder: Path) -> list[tuple[int, Path]]:
    if not folder.is_dir():
        return []
    found = [(match, path) for path in folder.iterdir() if (match := _LEVEL_FOLDER.fullmatch(path.name))]
    return [(int(match[1]), path) for match, path in found if path.is_dir()]


def _numbered(folder: Path, level: int | None) -> Iterable[Entry]:
    for path in folder.iterdir():
        match = _NUMBERED_FILE.fullmatch(path.name)
        if match and path.is_file():
            name = path.stem if level is None else f"level{level}/{path.stem}"
            yield Entry(name, level, int(match[1]), path)


def _order(entry: Entry) -> tuple[int, int, str]:
    return entry.level or 0, entry.number or 0, entry.name


def _asked(levels: Sequence[int], numbers: Sequence[int]) -> str:
    parts = [f"of level {', '.join(map(str, levels))}"] if levels else []
    parts += [f"with number {', '.join(map(str, numbers))}"] if numbers else []
    return " ".join(parts)


def _offered(found: Sequence[Entry], levels: Sequence[int]) -> str:
    there = sorted({entry.level for entry in found if entry.level is not None})
    if levels and not set(levels) & set(there):
        return f"its levels are {', '.join(map(str, there))}" if there else "its problems have no levels"
    numbers = sorted(
        {entry.number for entry in found if entry.number is not None and entry.level in (levels or (entry.level,))}
    )
    return f"its numbers go from {numbers[0]} to {numbers[-1]}" if numbers else f"it has {_names(found)}"


def _missing(entries: Sequence[Entry], level: int | None, number: int | None) -> list[str]:
    missing = ["--level"] if level is None and len({entry.level for entry in entries}) > 1 else []
    missing += ["--problem-id"] if number is None and any(entry.number is not None for entry in entries) else []
    return missing or ["its own path"]


def _names(entries: Sequence[Entry]) -> str:
    shown = ", ".join(entry.name for entry in entries[:_SHOWN])
    return shown if len(entries) <= _SHOWN else f"{shown}, …"
