"""Who runs on which of a lane's cores.

On a GPU's lane with cores enough, what is timed launches its kernels from a core of its own, and what prepares the next ones
(spares that import torch, builds) has cores that nothing timed runs on: it need not stand still while a timing is on. On the
processor the lane's cores are what is timed, so that everything shares them and all else is silenced.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_APART = 4
"""Cores from which on the timed one is kept apart."""
_BACKGROUND_APART = 6
"""Cores from which on background work has its own."""
_SIBLINGS_APART = 12
"""Cores from which on nothing runs on the other half of the timed one's."""
_REFEREE = 2


@dataclass(frozen=True, slots=True)
class Cores:
    """The cores of one lane."""

    all: frozenset[int]
    timed: int | None
    """From which runners launch kernels; `None` where it is not kept apart."""
    referee: frozenset[int]
    background: frozenset[int]
    """Of spares until they open the device, and of builds."""

    @property
    def background_apart(self) -> bool:
        """Whether background work has no core in common with what is timed, nor with who times it."""
        return not self.background & (self.referee | {self.timed})

    @staticmethod
    def of(cpus: frozenset[int], *, gpu: bool, siblings: Callable[[int], frozenset[int]] | None = None) -> Cores:
        """Share a lane's cores out; `siblings`: who shares a core with a logical one, by this machine unless told."""
        if not gpu or len(cpus) < _APART:
            return Cores(cpus, None, cpus, cpus)
        *rest, timed = sorted(cpus)
        if len(cpus) < _BACKGROUND_APART:
            return Cores(cpus, timed, frozenset(rest), frozenset(rest))
        if len(cpus) >= _SIBLINGS_APART:
            # Whoever computes on the other half of its core slows what is timed there.
            beside = (siblings or thread_siblings)(timed)
            rest = [core for core in rest if core not in beside]
        return Cores(cpus, timed, frozenset(rest[-_REFEREE:]), frozenset(rest[:-_REFEREE]))


def thread_siblings(core: int) -> frozenset[int]:
    """Logical cores that share a physical one with this one, itself among them; itself alone where the kernel does not say."""
    try:
        text = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text(encoding="ascii")
        found: set[int] = set()
        for part in text.strip().split(","):
            first, _, last = part.partition("-")
            found |= set(range(int(first), int(last or first) + 1))
    except (OSError, ValueError):
        return frozenset({core})
    return frozenset(found | {core})
