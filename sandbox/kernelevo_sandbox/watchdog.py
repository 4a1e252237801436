"""One tree of processes found through /proc: the fallback where no control group can be created.

Nothing here is held by the kernel: the supervisor polls `usage` and kills. A burst between two polls can overshoot, and
memory that no process maps (tmpfs, memfds) is not counted; the tmpfs has a size of its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from kernelevo_sandbox.contract import MemoryEnforcement
from kernelevo_sandbox.trees import Tree, Usage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kernelevo_sandbox.contract import Limits

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def _stat(pid: int) -> list[bytes] | None:
    """Fields of /proc/pid/stat from the third one (the state) on; `None`: there is no such process."""
    try:
        stat = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    return stat[stat.rindex(b")") + 2 :].split()


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot: with the pid, its identity. `None`: there is no such process."""
    fields = _stat(pid)
    return int(fields[19]) if fields is not None and fields[0] not in (b"Z", b"X") else None


def parent_of(pid: int) -> int | None:
    """A process's parent; `None`: there is no such process."""
    fields = _stat(pid)
    return int(fields[1]) if fields is not None else None


def _children(pid: int) -> list[int]:
    found = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208  names, not paths
            with contextlib.suppress(OSError):
                found += [int(child) for child in Path(f"/proc/{pid}/task/{task}/children").read_bytes().split()]
    except OSError:
        pass
    return found


def _children_listed() -> bool:
    """Whether this kernel lists children (CONFIG_PROC_CHILDREN); otherwise all of /proc is read."""
    return Path(f"/proc/self/task/{os.getpid()}/children").exists()


def _all_parents() -> dict[int, list[int]]:
    tree: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit() and (fields := _stat(int(name))) is not None:
            tree.setdefault(int(fields[1]), []).append(int(name))
    return tree


def descendants(root: int) -> list[int]:
    """Every process below `root`, parents first."""
    tree = None if _children_listed() else _all_parents()
    found: dict[int, None] = {}
    queue = [root]
    while queue:
        pid = queue.pop()
        children = _children(pid) if tree is None else tree.get(pid, [])
        new = [child for child in children if child not in found]
        found.update(dict.fromkeys(new))
        queue += new
    return list(found)


def _resident(pids: Iterable[int]) -> int:
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            total += int((_PROC / str(pid) / "statm").read_bytes().split()[1]) * _PAGE
    return total


def _proportional(pids: Iterable[int]) -> int:
    """Memory with shared pages divided among those who share them; resident memory where that cannot be read."""
    total = 0
    for pid in pids:
        try:
            for line in (_PROC / str(pid) / "smaps_rollup").read_bytes().splitlines():
                if line.startswith(b"Pss:"):
                    total += int(line.split()[1]) * 1024
                    break
        except (OSError, ValueError, IndexError):
            total += _resident([pid])
    return total


class ProcTree(Tree):
    """The processes below a root that is itself trusted: bubblewrap's monitor, or a supervisor."""

    enforcement = MemoryEnforcement.WATCHDOG
    memory_held_by_kernel = False
    processes_held_by_kernel = False

    def __init__(self) -> None:
        self._root: int | None = None
        self._init: int | None = None
        self._init_started: int | None = None
        self._limit: int | None = None
        self._peak = 0
        self._cpu: dict[tuple[int, bytes], float] = {}

    def apply(self, limits: Limits, cpus: frozenset[int] | None) -> None:
        self._limit = limits.memory_bytes

    def attach(self, root: int, init: int | None) -> None:
        self._root = root
        self._init = init
        self._init_started = start_time(init) if init is not None else None

    def pids(self) -> list[int]:
        if self._root is None:
            return []
        found = descendants(self._root)
        # Once the monitor is gone, the namespace's first process has another parent, until it is gone as well.
        if (
            self._init is not None
            and self._init not in found
            and start_time(self._init) == self._init_started is not None
        ):
            found += [self._init, *descendants(self._init)]
        return found

    def freeze(self) -> bool:
        # A process may fork between the scan and its stop: it is frozen when a scan finds the same processes, all stopped.
        before = self.pids()
        for pid in before:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGSTOP)
        after = self.pids()
        return set(after) <= set(before) and all(_stopped(pid) for pid in after)

    def thaw(self) -> None:
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGCONT)

    def kill(self) -> None:
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def alive(self) -> bool:
        return any((fields := _stat(pid)) is not None and fields[0] not in (b"Z", b"X") for pid in self.pids())

    def usage(self) -> Usage:
        pids = self.pids()
        memory = _resident(pids)
        # The exact sum walks page tables: only where the cheap one, which counts shared pages again and again, matters.
        if memory > self._peak or (self._limit is not None and memory > self._limit):
            memory = _proportional(pids)
        self._peak = max(self._peak, memory)
        threads = 0
        for pid in pids:
            if (fields := _stat(pid)) is None:
                continue
            threads += int(fields[17])
            # Of its own and of those it waited for; what a dead process used that nobody waited for stays counted.
            self._cpu[pid, fields[19]] = (int(fields[11]) + int(fields[12])) / _TICKS
        return Usage(
            cpu_seconds=sum(self._cpu.values()),
            memory_bytes=memory,
            peak_memory_bytes=self._peak,
            processes=threads,
        )

    def remove(self) -> bool:
        return True


def _stopped(pid: int) -> bool:
    """Whether a process that SIGSTOP was sent to can run no more of its program.

    That holds in uninterruptible sleep (D) as well: the signal is pending, and comes before any return to the program. A
    parent in `vfork` stays in that state for as long as its child is stopped.
    """
    try:
        tasks = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208
    except OSError:
        return True
    for task in tasks:
        try:
            stat = Path(f"/proc/{pid}/task/{task}/stat").read_bytes()
        except OSError:
            continue
        if stat[stat.rindex(b")") + 2 :][:1] not in (b"T", b"t", b"D", b"Z", b"X"):
            return False
    return True
