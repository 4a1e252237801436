"""Control groups, version 2 or 1: where this process may create them, and one tree of processes in them.

Which controllers can be used is found by trying. A tree is one folder (v2) or one folder a controller (v1); its name says
which process owns it, so that leftovers of a dead owner can be told from the living trees of another evaluator.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from kernelevo_sandbox.contract import MemoryEnforcement, SandboxBroken
from kernelevo_sandbox.trees import Tree, Usage
from kernelevo_sandbox.watchdog import ProcTree, start_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernelevo_sandbox.contract import Limits

CONTROLLERS = ("memory", "pids", "freezer", "cpuacct", "cpuset")
_PREFIX = "kernelevo"
_ADOPTED = "kernelevo-host"
_NAME = re.compile(rf"{_PREFIX}-n(\d+)-p(\d+)-t(\d+)-(\d+)")
_SWEEP_DEPTH = 5
_SWEEP_TRIES = 200
_SWEEP_PAUSE_SECONDS = 0.005


def _pid_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


def _owner_mark() -> str:
    pid = os.getpid()
    return f"{_PREFIX}-n{_pid_namespace()}-p{pid}-t{start_time(pid)}"


def _write(path: Path, value: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def _try_write(path: Path, value: str) -> bool:
    try:
        _write(path, value)
    except OSError:
        return False
    return True


def _keyed(path: Path, key: str) -> int | None:
    try:
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == key:
                return int(value)
    except (OSError, ValueError):
        pass
    return None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where trees can be created: `unified` for version 2, or one folder a controller for version 1."""

    unified: Path | None = None
    split: dict[str, Path] = field(default_factory=dict)
    why_not: tuple[str, ...] = ()
    """For people: what was tried and refused."""

    @property
    def version(self) -> Literal[1, 2] | None:
        """Which version holds memory, if any."""
        if self.unified is not None:
            return 2
        return 1 if "memory" in self.split else None


def _mounts() -> Iterator[tuple[str, Path, str, set[str]]]:
    """(type, mount point, root inside the hierarchy, super options) of every mounted hierarchy."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            fields = left.split()
            yield kind, Path(fields[4]), fields[3], set(options.split(","))


def _own_paths() -> dict[str, str]:
    """This process's path by controller; version 2 under the empty name."""
    found: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            found[controller] = path
    return found


def _candidates(mount: Path, root: str, own: str | None) -> list[Path]:
    """Own group first, so that limits on the evaluator as a whole keep holding; then its parent; then the mount's root."""
    found = []
    if own is not None and (own + "/").startswith(root.rstrip("/") + "/"):
        inner = own[len(root.rstrip("/")) :].strip("/")
        place = mount / inner
        found += [place, place.parent] if inner else [place]
    return [place for place in dict.fromkeys([*found, mount]) if place.is_dir()]


_trial = itertools.count()


def _creatable(place: Path) -> str | None:
    """Why no group can be created there; `None` if one can."""
    trial = place / f"{_owner_mark()}-{10_000_000 + next(_trial)}"
    try:
        trial.mkdir()
    except OSError as failure:
        return f"{place}: {failure.strerror}"
    with contextlib.suppress(OSError):
        trial.rmdir()
    return None


def _unified_refusal(place: Path) -> str | None:
    """Why version 2 cannot be used below `place`; `None` if it can, with its controllers enabled."""
    try:
        offered = set((place / "cgroup.controllers").read_text().split())
    except OSError as failure:
        return f"{place}: {failure.strerror}"
    if missing := {"memory", "pids"} - offered:
        return f"{place}: no controller {' '.join(sorted(missing))}"
    if refusal := _creatable(place):
        return refusal
    control = place / "cgroup.subtree_control"
    for wanted in ("memory", "pids", "cpu", "cpuset"):
        if wanted in offered and wanted not in control.read_text().split():
            _try_write(control, f"+{wanted}")
    if missing := {"memory", "pids"} - set(control.read_text().split()):
        return f"{place}: {' '.join(sorted(missing))} cannot be enabled for children (it holds processes, or is not delegated)"
    return None


def _adopt(place: Path) -> None:
    """Move a container's own processes from its root group into a child.

    Version 2 gives controllers to children only of a group without processes of its own, and a container's root group holds
    the container's.
    """
    with contextlib.suppress(OSError):
        leaf = place / _ADOPTED
        leaf.mkdir(exist_ok=True)
        for _ in range(8):
            pids = (place / "cgroup.procs").read_text().split()
            if not pids:
                return
            for pid in pids:
                _try_write(leaf / "cgroup.procs", pid)


def discover() -> Layout:
    """Find by trying where trees can be created."""
    own = _own_paths()
    why_not: list[str] = []
    split: dict[str, Path] = {}
    for kind, mount, root, options in _mounts():
        if kind == "cgroup2":
            places = _candidates(mount, root, own.get(""))
            for place in places:
                if (refusal := _unified_refusal(place)) is None:
                    return Layout(unified=place)
                why_not.append(refusal)
            if os.geteuid() == 0 and own.get("") == "/" and (mount / "cgroup.type").exists():
                _adopt(mount)
                if _unified_refusal(mount) is None:
                    return Layout(unified=mount)
            continue
        for controller in CONTROLLERS:
            if controller in options and controller not in split:
                for place in _candidates(mount, root, own.get(controller)):
                    if (refusal := _creatable(place)) is None:
                        split[controller] = place
                        break
                    why_not.append(refusal)
    return Layout(split=split, why_not=tuple(why_not))


_serial = itertools.count(1)


class CgroupTree(Tree):
    """One tree in control groups."""

    def __init__(self, layout: Layout) -> None:
        name = f"{_owner_mark()}-{next(_serial)}"
        self._init: int | None = None
        # Stops and continues the tree where version 1 has no freezer.
        self._signals = ProcTree()
        self._dirs: dict[str, Path] = {}
        self._v2 = layout.unified is not None
        if layout.unified is not None:
            place = layout.unified / name
            self._dirs = dict.fromkeys(CONTROLLERS, place)
        else:
            self._dirs = {controller: place / name for controller, place in layout.split.items()}
        self.enforcement = MemoryEnforcement.CGROUP_V2 if self._v2 else MemoryEnforcement.CGROUP_V1
        self.memory_held_by_kernel = "memory" in self._dirs
        self.processes_held_by_kernel = "pids" in self._dirs
        try:
            for place in self._folders():
                place.mkdir()
            if not self._v2 and (cpuset := self._dirs.get("cpuset")) is not None:
                # A version 1 cpuset starts empty, and nothing can enter it so.
                for file in ("cpuset.cpus", "cpuset.mems"):
                    _write(cpuset / file, (cpuset.parent / file).read_text().strip())
        except OSError as failure:
            self.remove()
            raise SandboxBroken(f"could not create a control group: {failure}") from failure
        # Opened once: freezing happens around timed blocks, and must cost no path look-ups.
        self._freezer: int | None = None
        if (freezer := self._dirs.get("freezer")) is not None:
            state = freezer / ("cgroup.freeze" if self._v2 else "freezer.state")
            with contextlib.suppress(OSError):
                self._freezer = os.open(state, os.O_RDWR | os.O_CLOEXEC)
        self._events = os.open(self._dirs["memory"] / "cgroup.events", os.O_RDONLY | os.O_CLOEXEC) if self._v2 else -1

    def _folders(self) -> list[Path]:
        return list(dict.fromkeys(self._dirs.values()))

    def join_files(self) -> tuple[Path, ...]:
        return tuple(place / "cgroup.procs" for place in self._folders())

    def thaw_files(self) -> tuple[Path, ...]:
        if self._v2 or "freezer" not in self._dirs:
            return ()  # a group of version 2 can be killed while it is frozen
        return (self._dirs["freezer"] / "freezer.state",)

    def apply(self, limits: Limits, cpus: frozenset[int] | None) -> None:
        try:
            if (memory := self._dirs.get("memory")) is not None:
                if self._v2:
                    _write(memory / "memory.max", str(limits.memory_bytes))
                    _try_write(memory / "memory.swap.max", "0")
                    _try_write(memory / "memory.oom.group", "1")
                else:
                    _write(memory / "memory.limit_in_bytes", str(limits.memory_bytes))
                    _try_write(memory / "memory.memsw.limit_in_bytes", str(limits.memory_bytes))
            if (pids := self._dirs.get("pids")) is not None:
                _write(pids / "pids.max", str(limits.processes))
            if cpus is not None and (cpuset := self._dirs.get("cpuset")) is not None:
                # Affinity, set in any case, keeps the cores; this keeps the program from widening it.
                _try_write(cpuset / "cpuset.cpus", ",".join(str(cpu) for cpu in sorted(cpus)))
        except OSError as failure:
            raise SandboxBroken(f"could not set a control group's limit: {failure}") from failure

    def attach(self, root: int, init: int | None) -> None:
        self._init = init
        self._signals.attach(root, init)

    def freeze(self) -> bool:
        if self._freezer is None:
            return self._signals.freeze()
        if self._v2:
            os.pwrite(self._freezer, b"1", 0)
            return b"frozen 1" in os.pread(self._events, 256, 0)
        os.pwrite(self._freezer, b"FROZEN", 0)
        return os.pread(self._freezer, 32, 0).startswith(b"FROZEN")

    def thaw(self) -> None:
        if self._freezer is None:
            self._signals.thaw()
        else:
            os.pwrite(self._freezer, b"0" if self._v2 else b"THAWED", 0)

    def thaw_switch(self) -> tuple[int, bytes] | None:
        return None if self._freezer is None else (self._freezer, b"0" if self._v2 else b"THAWED")

    def _pids(self) -> list[int]:
        place = next(iter(self._dirs.values()))
        try:
            return [int(pid) for pid in (place / "cgroup.procs").read_text().split()]
        except FileNotFoundError:
            return []

    def kill(self) -> None:
        if self._v2 and _try_write(self._folders()[0] / "cgroup.kill", "1"):
            self.thaw()
            return
        # The namespace's first process ends all others with it, so it goes first. The signals are pending when the tree
        # thaws, so that nothing of it runs again.
        for pid in [*([self._init] if self._init else []), *self._pids()]:
            if pid == self._init and pid not in self._pids():
                continue
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.thaw()

    def alive(self) -> bool:
        return bool(self._pids())

    def usage(self) -> Usage:
        memory, pids, cpuacct = (self._dirs.get(name) for name in ("memory", "pids", "cpuacct"))
        cpu: float | None = None
        if cpuacct is not None:
            ticks = _keyed(cpuacct / "cpu.stat", "usage_usec") if self._v2 else _number(cpuacct / "cpuacct.usage")
            cpu = ticks / (1e6 if self._v2 else 1e9) if ticks is not None else None
        names = (
            ("memory.current", "memory.peak", "memory.events")
            if self._v2
            else (
                "memory.usage_in_bytes",
                "memory.max_usage_in_bytes",
                "memory.oom_control",
            )
        )
        return Usage(
            cpu_seconds=cpu,
            memory_bytes=_number(memory / names[0]) if memory else None,
            peak_memory_bytes=_number(memory / names[1]) if memory else None,
            processes=_number(pids / "pids.current") if pids else len(self._pids()),
            oom_kills=(_keyed(memory / names[2], "oom_kill") or 0) if memory else 0,
        )

    def remove(self) -> bool:
        for name in ("_freezer", "_events"):
            fd = getattr(self, name, None)
            if fd is not None and fd >= 0:
                os.close(fd)
                setattr(self, name, None)
        gone = True
        for place in self._folders():
            try:
                place.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                gone = False
        return gone


def sweep() -> int:
    """Kill and remove the trees of owners that no longer live; returns how many groups were removed.

    It waits for their processes to end, so it belongs in a thread.
    """
    removed = 0
    for _, mount, _, _ in _mounts():
        for place in _leftovers(mount, _SWEEP_DEPTH):
            for state, value in (("freezer.state", "THAWED"), ("cgroup.kill", "1")):
                if (place / state).exists():
                    _kill_members(place)
                    _try_write(place / state, value)
            for _ in range(_SWEEP_TRIES):
                _kill_members(place)
                try:
                    place.rmdir()
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(_SWEEP_PAUSE_SECONDS)  # its processes are still ending
                    continue
                removed += 1
                break
    return removed


def _kill_members(place: Path) -> None:
    with contextlib.suppress(OSError, ValueError):
        for pid in (place / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def _leftovers(place: Path, depth: int) -> Iterator[Path]:
    try:
        children = [child for child in place.iterdir() if child.is_dir() and not child.is_symlink()]
    except OSError:
        return
    for child in children:
        if (match := _NAME.fullmatch(child.name)) is not None:
            namespace, pid, started = (int(match.group(index)) for index in (1, 2, 3))
            if namespace == _pid_namespace() and start_time(pid) != started:
                yield child
        elif depth > 1:
            yield from _leftovers(child, depth - 1)
