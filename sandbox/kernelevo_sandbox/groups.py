"""A tree of processes in control groups that exist, version 2 or 1: freezing, killing, and what it uses."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from typing import TYPE_CHECKING

from kernelevo_sandbox.contract import MemoryEnforcement
from kernelevo_sandbox.freezer import Freezer
from kernelevo_sandbox.trees import Tree, Usage
from kernelevo_sandbox.watchdog import ProcTree

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CONTROLLERS = ("memory", "pids", "freezer", "cpuacct", "cpuset")


def write(path: Path, value: str) -> None:
    """Write to a control file, which must be there.

    Raises:
        OSError: the kernel refuses.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def try_write(path: Path, value: str) -> bool:
    """Write to a control file; whether that worked."""
    try:
        write(path, value)
    except OSError:
        return False
    return True


def keyed(path: Path, key: str) -> int | None:
    """The number behind `key` in a control file of such lines; `None`: there is none."""
    try:
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == key:
                return int(value)
    except (OSError, ValueError):
        pass
    return None


def number(path: Path) -> int | None:
    """What a control file holds; `None`: it is not there, or no number."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


class GroupTree(Tree):
    """One tree, in one folder (version 2) or one folder a controller (version 1).

    Its groups may go away under it, with its last process, where somebody else made them: then nothing of it is left to
    freeze, to thaw or to kill.
    """

    def __init__(self, dirs: Mapping[str, Path], *, unified: bool) -> None:
        """`dirs`: the folder of each of `CONTROLLERS` that is there; with `unified` all are one.

        Raises:
            OSError: they are not there.
        """
        self.dirs = dict(dirs)
        self.unified = unified
        self._init: int | None = None
        # Stops and continues the tree where version 1 has no freezer.
        self._signals = ProcTree()
        self.enforcement = MemoryEnforcement.CGROUP_V2 if unified else MemoryEnforcement.CGROUP_V1
        self.memory_held_by_kernel = "memory" in self.dirs
        self.processes_held_by_kernel = "pids" in self.dirs
        # Opened once: freezing happens around timed blocks, and must cost no path look-ups.
        self._freezer: Freezer | None = None
        if (state := self._state()) is not None:
            with contextlib.suppress(OSError):
                self._freezer = Freezer(
                    os.open(state, os.O_RDWR | os.O_CLOEXEC),
                    os.open(state.parent / "cgroup.events", os.O_RDONLY | os.O_CLOEXEC) if unified else None,
                )

    def _state(self) -> Path | None:
        freezer = self.dirs.get("freezer")
        return None if freezer is None else freezer / ("cgroup.freeze" if self.unified else "freezer.state")

    def folders(self) -> list[Path]:
        """Every folder once."""
        return list(dict.fromkeys(self.dirs.values()))

    def thaw_files(self) -> tuple[tuple[Path, str], ...]:
        state = self._state()
        return () if state is None else ((state, "0" if self.unified else "THAWED"),)

    def attach(self, root: int, init: int | None) -> None:
        self._init = init
        self._signals.attach(root, init)

    def freeze(self) -> bool:
        return self._signals.freeze() if self._freezer is None else self._freezer.freeze()

    def thaw(self) -> None:
        if self._freezer is None:
            self._signals.thaw()
        else:
            self._freezer.thaw()

    def freezer(self) -> Freezer | None:
        return self._freezer

    def pids(self) -> list[int]:
        place = next(iter(self.dirs.values()))
        try:
            return [int(pid) for pid in (place / "cgroup.procs").read_text().split()]
        except OSError as failure:
            if failure.errno not in (errno.ENOENT, errno.ENODEV):
                raise
            return []

    def kill(self) -> None:
        if self.unified and try_write(self.folders()[0] / "cgroup.kill", "1"):
            self.thaw()
            return
        # The namespace's first process ends all others with it, so it goes first. The signals are pending when the tree
        # thaws, so that nothing of it runs again.
        for pid in [*([self._init] if self._init else []), *self.pids()]:
            if pid == self._init and pid not in self.pids():
                continue
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.thaw()

    def alive(self) -> bool:
        return bool(self.pids())

    def usage(self) -> Usage:
        memory, pids, cpuacct = (self.dirs.get(name) for name in ("memory", "pids", "cpuacct"))
        cpu: float | None = None
        if cpuacct is not None:
            ticks = keyed(cpuacct / "cpu.stat", "usage_usec") if self.unified else number(cpuacct / "cpuacct.usage")
            cpu = ticks / (1e6 if self.unified else 1e9) if ticks is not None else None
        names = (
            ("memory.current", "memory.peak", "memory.events")
            if self.unified
            else (
                "memory.usage_in_bytes",
                "memory.max_usage_in_bytes",
                "memory.oom_control",
            )
        )
        return Usage(
            cpu_seconds=cpu,
            memory_bytes=number(memory / names[0]) if memory else None,
            peak_memory_bytes=number(memory / names[1]) if memory else None,
            processes=number(pids / "pids.current") if pids else len(self.pids()),
            oom_kills=(keyed(memory / names[2], "oom_kill") or 0) if memory else 0,
        )

    def close(self) -> None:
        """Close what was opened at the start. Idempotent."""
        if self._freezer is not None:
            self._freezer.close()
            self._freezer = None

    def remove(self) -> bool:
        self.close()
        return True
