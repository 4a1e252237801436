"""A container's processes, held by the control groups that the engine made for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelevo_sandbox.cgroups import hierarchies, paths_of
from kernelevo_sandbox.contract import SandboxBroken
from kernelevo_sandbox.groups import CONTROLLERS, GroupTree
from kernelevo_sandbox.trees import Usage

if TYPE_CHECKING:
    from pathlib import Path

    from kernelevo_sandbox.contract import Limits


class ContainerTree(GroupTree):
    """The engine removes the groups as soon as the last process ends, so what was used is read before."""

    def __init__(self, pid: int) -> None:
        """`pid`: the container's first process, as this host numbers it.

        Raises:
            SandboxBroken: it is gone, or its groups cannot be used from here.
        """
        try:
            dirs, unified = _groups(pid)
            if "memory" not in dirs:
                raise SandboxBroken(
                    "the container's control groups cannot be seen from here: run on the engine's own host"
                )
            super().__init__(dirs, unified=unified)
        except OSError as failure:
            raise SandboxBroken(f"the container's control groups cannot be used: {failure}") from failure
        self._last = Usage()
        self._killed = False
        self.attach(pid, pid)

    @property
    def killed(self) -> bool:
        """Whether this process has ended it."""
        return self._killed

    def apply(self, limits: Limits, cpus: frozenset[int] | None) -> None:
        """Nothing: the engine has set them."""

    def kill(self) -> None:
        if not self._killed:
            self.usage()
        self._killed = True
        super().kill()

    def usage(self) -> Usage:
        found = super().usage()
        if found.memory_bytes is not None:
            self._last = found
        return self._last


def _groups(pid: int) -> tuple[dict[str, Path], bool]:
    """The folder of each controller, and whether they are one folder of version 2."""
    own = paths_of(pid)
    split: dict[str, Path] = {}
    for kind, mount, root, options in hierarchies():
        for controller in ("",) if kind == "cgroup2" else CONTROLLERS:
            if kind != "cgroup2" and controller not in options:
                continue
            path = own.get(controller)
            if path is None or not path.startswith(root) or path == root:
                continue
            place = mount / path[len(root) :].lstrip("/")
            if kind == "cgroup2":
                if (place / "memory.max").exists():
                    return dict.fromkeys(CONTROLLERS, place), True
            elif place.is_dir():
                split.setdefault(controller, place)
    return split, False
