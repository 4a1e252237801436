"""What a run is told of a bank: the lessons of runs on the same kind of device, those on problems like its own first.

Pure, but for `recollect`, which reads the bank once, when the problem is known; what it found is an event, so that a run that is
gone on with, or replayed, is told the same whatever became of the bank.
"""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from kernelevo_searcher.events import MemoryRead
from kernelevo_searcher.memory.bank import read_bank
from kernelevo_searcher.memory.distil import context_of
from kernelevo_searcher.memory.lessons import Recollection, RunLessons, merged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelevo_searcher.journal import Journal
    from kernelevo_searcher.memory.lessons import Context, Lesson

__all__ = ["alike", "recall", "recollect"]

MOST_LESSONS = 12
"""About forty tokens each, in every prompt that asks for something new."""
_LEAST_ALIKE = 0.1
_FAR_SIZES = 8.0
"""Powers of two between two problems' bytes after which their sizes have nothing in common."""


def alike(one: Context, other: Context) -> float:
    """From 0, nothing in common (or another kind of device), to 1: operators count half, then dtypes, device and size."""
    if one.device is not other.device:
        return 0.0
    near = max(0.0, 1.0 - abs(one.size - other.size) / _FAR_SIZES)
    same_device = float(one.architecture == other.architecture)
    return (
        0.5 * _shared(one.operators, other.operators)
        + 0.2 * _shared(one.dtypes, other.dtypes)
        + 0.15 * (near + same_device)
    )


def _shared(one: Sequence[str], other: Sequence[str]) -> float:
    union = set(one) | set(other)
    return len(set(one) & set(other)) / len(union) if union else 0.0


def recall(bank: Sequence[RunLessons], context: Context, most: int = MOST_LESSONS) -> tuple[Recollection, ...]:
    """What the bank says to somebody in this context, the most telling first.

    Lessons of a model's ideas come before those of the tuner, which are tried without being told.
    """
    groups = defaultdict(list)
    for entry in bank:
        likeness = alike(entry.context, context)
        if likeness >= _LEAST_ALIKE:
            for lesson in entry.lessons:
                groups[lesson.technique, lesson.language, lesson.tuned].append((likeness, entry, lesson))

    def telling(group: list[tuple[float, RunLessons, Lesson]]) -> tuple[bool, float, str]:
        tried = sum(likeness * lesson.tried for likeness, _, lesson in group)
        nearest = max(likeness for likeness, *_ in group)
        return (group[0][2].tuned, -nearest * math.log1p(tried), group[0][2].technique)

    chosen = sorted(groups.values(), key=telling)[:most]
    return tuple(merged([(entry, lesson) for _, entry, lesson in group]) for group in chosen)


def recollect(journal: Journal) -> None:
    """Read the run's bank, if it has one that was not read yet, and log what it says. The problem must be registered.

    Raises:
        BadInput: it cannot be read.
    """
    state = journal.state
    bank = state.settings.memory
    if bank is None or (state.memory is not None and state.memory.bank == bank) or state.registered is None:
        return
    entries = read_bank(Path(bank))
    context = context_of(state, journal.problem().source)
    near = [entry for entry in entries if alike(entry.context, context) >= _LEAST_ALIKE]
    runs = tuple(entry.origin.run_id for entry in near)
    journal.write(MemoryRead(bank=bank, runs=runs, lessons=recall(near, context)))
