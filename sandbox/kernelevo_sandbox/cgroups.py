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

from kernelevo_sandbox import owners
from kernelevo_sandbox.contract import SandboxBroken
from kernelevo_sandbox.groups import CONTROLLERS, GroupTree, try_write, write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernelevo_sandbox.contract import Limits

_PREFIX = "kernelevo"
_ADOPTED = "kernelevo-host"
_NAME = re.compile(rf"{_PREFIX}-({owners.MARK})-\d+")
_SWEEP_DEPTH = 5
_SWEEP_TRIES = 200
_SWEEP_PAUSE_SECONDS = 0.005


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


def hierarchies() -> Iterator[tuple[str, Path, str, set[str]]]:
    """(type, mount point, root inside the hierarchy, super options) of every mounted hierarchy."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            fields = left.split()
            yield kind, Path(fields[4]), fields[3], set(options.split(","))


def paths_of(pid: int | str = "self") -> dict[str, str]:
    """A process's path by controller; version 2 under the empty name."""
    found: dict[str, str] = {}
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            found[controller] = path
    return found


def memory_limit_bytes() -> int | None:
    """The least memory that this process' group, or one that it lies in, is allowed; `None` where none is limited."""
    found = []
    try:
        own = paths_of()
        for kind, mount, root, options in hierarchies():
            if kind == "cgroup2":
                name, path = "memory.max", own.get("")
            elif "memory" in options:
                name, path = "memory.limit_in_bytes", own.get("memory")
            else:
                continue
            if path is None or not (path + "/").startswith(root.rstrip("/") + "/"):
                # Seen from within a namespace that the process itself was moved into: the mount shows its own group as the root.
                path = root
            place = mount / path[len(root.rstrip("/")) :].strip("/")
            for group in (place, *place.parents):
                with contextlib.suppress(OSError, ValueError):  # "max", or not there
                    found.append(int((group / name).read_text()))
                if group == mount:
                    break
    except OSError:  # no /proc
        return None
    return min(found, default=None)


def _candidates(mount: Path, root: str, own: str | None) -> list[Path]:
    """Own group first, so that limits on the evaluator as a whole keep holding; then its parent; then the mount's root."""
    found = []
    if own is not None and (own + "/").startswith(root.rstrip("/") + "/"):
        inner = own[len(root.rstrip("/")) :].strip("/")
        place = mount / inner
        found += [place, place.parent] if inner else [place]
    return [place for place in dict.fromkeys([*found, mount]) if place.is_dir()]


_serial = itertools.count(1)


def _name() -> str:
    return f"{_PREFIX}-{owners.mark()}-{next(_serial)}"


def _creatable(place: Path) -> str | None:
    """Why no group can be created there; `None` if one can."""
    trial = place / _name()
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
            try_write(control, f"+{wanted}")
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
                try_write(leaf / "cgroup.procs", pid)


def discover() -> Layout:
    """Find by trying where trees can be created."""
    own = paths_of()
    why_not: list[str] = []
    split: dict[str, Path] = {}
    for kind, mount, root, options in hierarchies():
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


class CgroupTree(GroupTree):
    """One tree in control groups made for it."""

    def __init__(self, layout: Layout) -> None:
        name = _name()
        unified = layout.unified is not None
        if layout.unified is not None:
            dirs = dict.fromkeys(CONTROLLERS, layout.unified / name)
        else:
            dirs = {controller: place / name for controller, place in layout.split.items()}
        try:
            for place in dict.fromkeys(dirs.values()):
                place.mkdir()
            if not unified and (cpuset := dirs.get("cpuset")) is not None:
                # A version 1 cpuset starts empty, and nothing can enter it so.
                for file in ("cpuset.cpus", "cpuset.mems"):
                    write(cpuset / file, (cpuset.parent / file).read_text().strip())
            super().__init__(dirs, unified=unified)
        except OSError as failure:
            for place in dict.fromkeys(dirs.values()):
                with contextlib.suppress(OSError):
                    place.rmdir()
            raise SandboxBroken(f"could not create a control group: {failure}") from failure

    def join_files(self) -> tuple[Path, ...]:
        return tuple(place / "cgroup.procs" for place in self.folders())

    def apply(self, limits: Limits, cpus: frozenset[int] | None) -> None:
        try:
            if (memory := self.dirs.get("memory")) is not None:
                if self.unified:
                    write(memory / "memory.max", str(limits.memory_bytes))
                    try_write(memory / "memory.swap.max", "0")
                    try_write(memory / "memory.oom.group", "1")
                else:
                    write(memory / "memory.limit_in_bytes", str(limits.memory_bytes))
                    try_write(memory / "memory.memsw.limit_in_bytes", str(limits.memory_bytes))
            if (pids := self.dirs.get("pids")) is not None:
                write(pids / "pids.max", str(limits.processes))
            if cpus is not None and (cpuset := self.dirs.get("cpuset")) is not None:
                # Affinity, set in any case, keeps the cores; this keeps the program from widening it.
                try_write(cpuset / "cpuset.cpus", ",".join(str(cpu) for cpu in sorted(cpus)))
        except OSError as failure:
            raise SandboxBroken(f"could not set a control group's limit: {failure}") from failure

    def taken_away(self) -> str:
        # Nothing inside can do it: its processes were moved elsewhere first, where no limit of ours holds them.
        gone = [str(place) for place in self.folders() if not place.exists()]
        return f"control groups were removed by somebody else ({', '.join(gone)})" if gone else ""

    def remove(self) -> bool:
        self.close()
        gone = True
        for place in self.folders():
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
    for _, mount, _, _ in hierarchies():
        for place in _leftovers(mount, _SWEEP_DEPTH):
            for state, value in (("freezer.state", "THAWED"), ("cgroup.kill", "1")):
                if (place / state).exists():
                    _kill_members(place)
                    try_write(place / state, value)
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
            if owners.dead(match.group(1)):
                yield child
        elif depth > 1:
            yield from _leftovers(child, depth - 1)
