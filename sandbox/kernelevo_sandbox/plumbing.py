"""What the backends share before a program runs: checks of a spec, pipes, per-process limits, and giving up a cell."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from kernelevo_sandbox.contract import SandboxBroken

if TYPE_CHECKING:
    from kernelevo_sandbox.contract import Limits, SandboxSpec
    from kernelevo_sandbox.spawning import Cell
    from kernelevo_sandbox.trees import Tree

MAX_FDS = 200
"""How many descriptors can be passed to a sandbox."""
_DISCARD_SECONDS = 5.0


def check(spec: SandboxSpec) -> None:
    """Refuse what no backend can start.

    Raises:
        SandboxBroken: the caller's mistake, with its name.
    """
    if not spec.argv or not spec.argv[0].startswith("/"):
        raise SandboxBroken("the program must be named by an absolute path")
    if not re.fullmatch(r"[a-z0-9-]{0,40}", spec.label):
        raise SandboxBroken(f"not a label: {spec.label!r}")
    if any(number < 3 or number >= spec.limits.open_files for number in spec.fds):
        raise SandboxBroken("descriptors inside start at 3 and stay below the limit on open files")
    if len(spec.fds) > MAX_FDS:
        raise SandboxBroken(f"at most {MAX_FDS} descriptors can be passed")
    for text in (*spec.argv, *spec.env, *spec.env.values()):
        if "\0" in text:
            raise SandboxBroken("arguments and environment cannot hold a zero byte")
    for node in spec.devices:
        if (
            node.parts[:2] != ("/", "dev")
            or ".." in node.parts
            or not (node.is_char_device() or node.is_block_device())
        ):
            raise SandboxBroken(f"not a device node below /dev: {node}")
    for mount in spec.mounts:
        if not mount.target.startswith("/") or ".." in Path(mount.target).parts:
            raise SandboxBroken(f"a mount's target must be absolute: {mount.target}")
        if not mount.source.exists():
            raise SandboxBroken(f"a mount's source does not exist: {mount.source}")


def pipe(write_ends: contextlib.ExitStack, read_ends: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe (read end, write end) whose ends are closed with the given stacks."""
    read, write = os.pipe2(os.O_CLOEXEC)
    read_ends.callback(os.close, read)
    write_ends.callback(os.close, write)
    return read, write


def rlimits(limits: Limits, *, processes: int | None) -> dict[str, int]:
    """Limits of each process. Never RLIMIT_AS: CUDA reserves far more address space than it uses."""
    found = {
        "RLIMIT_CORE": 0,
        "RLIMIT_NOFILE": limits.open_files,
        "RLIMIT_FSIZE": limits.file_size_bytes,
    }
    if processes is not None:
        found["RLIMIT_NPROC"] = processes
    if limits.cpu_seconds is not None:
        # The whole tree's time is watched from outside; this one holds should the watcher be late.
        found["RLIMIT_CPU"] = math.ceil(limits.cpu_seconds) + 1
    return found


async def discard(cell: Cell, tree: Tree) -> None:
    """End a cell that was never used, or whose start failed. Idempotent."""
    cell.signal(signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DISCARD_SECONDS):
            await asyncio.shield(cell.exit)
            while tree.alive():
                tree.kill()
                await asyncio.sleep(0.001)
    cell.close()
    tree.remove()
