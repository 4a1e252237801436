"""How long a runner's threads stood in line for a core: what a busy host adds to a time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def waited_us(pids: Iterable[int], *, first_only: bool = False) -> float | None:
    """Microseconds in which threads of these processes could run and had no core, since each began; threads that ended are left
    out. `None` where the kernel does not tell (it is built without CONFIG_SCHED_INFO, or the processes are not seen from here).

    `first_only`: of each process its first thread alone.
    """
    waited: int | None = None
    for pid in pids:
        for path in [Path("/proc", str(pid), "schedstat")] if first_only else _tasks(pid):
            try:
                # Time on a core, time in line for one, both in nanoseconds, and turns.
                waited = (waited or 0) + int(path.read_bytes().split()[1])
            except (OSError, IndexError, ValueError):
                continue
    return None if waited is None else waited / 1000


def _tasks(pid: int) -> list[Path]:
    folder = Path("/proc", str(pid), "task")
    try:
        return [task / "schedstat" for task in folder.iterdir()]
    except OSError:
        return []
