"""What holds a sandbox's processes together: the interface that control groups and the /proc watchdog both fulfil."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from kernelevo_sandbox.contract import Limits, MemoryEnforcement
    from kernelevo_sandbox.freezer import Freezer


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a tree uses now, and used at most. `None` where it cannot be known."""

    cpu_seconds: float | None = None
    memory_bytes: int | None = None
    peak_memory_bytes: int | None = None
    processes: int | None = None
    oom_kills: int = 0


class Tree(ABC):
    """All processes of one sandbox. Every method is quick and does not wait."""

    enforcement: MemoryEnforcement
    memory_held_by_kernel: bool
    """Whether the kernel keeps the memory limit; otherwise the supervisor polls `usage`."""
    processes_held_by_kernel: bool
    """The same for the number of processes."""

    def join_files(self) -> tuple[Path, ...]:
        """The `cgroup.procs` files that the first process writes itself into."""
        return ()

    def thaw_files(self) -> tuple[tuple[Path, str], ...]:
        """Freezer states, and what to write there should the evaluator die with the tree frozen."""
        return ()

    @abstractmethod
    def apply(self, limits: Limits, cpus: frozenset[int] | None) -> None:
        """Set the limits, before the program runs."""

    @abstractmethod
    def attach(self, root: int, init: int | None) -> None:
        """Learn the first process, and the pid namespace's first one as the host numbers it."""

    @abstractmethod
    def freeze(self) -> bool:
        """Stop every process, or go on stopping; whether none can run any more."""

    @abstractmethod
    def thaw(self) -> None:
        """Let every process run again."""

    def freezer(self) -> Freezer | None:
        """What another process can freeze and thaw the tree with; `None` where there is nothing such."""
        return None

    @abstractmethod
    def kill(self) -> None:
        """Send SIGKILL to every process, frozen or not."""

    @abstractmethod
    def alive(self) -> bool:
        """Whether any process is left."""

    @abstractmethod
    def pids(self) -> list[int]:
        """Every process, as this process' pid namespace numbers it."""

    @abstractmethod
    def usage(self) -> Usage:
        """What the tree uses."""

    def taken_away(self) -> str:
        """What was to hold the tree and is there no more, by somebody else's doing; empty while all of it is."""
        return ""

    @abstractmethod
    def remove(self) -> bool:
        """Give up what held the tree, after its end; whether that worked."""
