"""Runs a command and says what outlived it: `supervise.py REPORT COMMAND…`.

Orphans of the command come to this process instead of to init, and so can be told from everybody else's. Those that live when the
command has ended are written to REPORT, a line each, and killed. SIGTERM is passed on; the exit status is the command's.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


def children(pid: int) -> list[int]:
    """Children of a process, of all its threads; none where it is gone."""
    found = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    except OSError:
        pass
    return found


def _described(pid: int) -> str:
    """State and command line; empty for one that has ended and waits to be reaped."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
    return "" if state in "ZX" else f"{pid} {state} {command[:300]}"


def main(report: Path, command: list[str]) -> int:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    process = subprocess.Popen(command)
    signal.signal(signal.SIGTERM, lambda number, frame: process.send_signal(number))
    while True:
        pid, status = os.wait()
        if pid == process.pid:
            break
    left = children(os.getpid())
    report.write_text("\n".join(line for pid in left if (line := _described(pid))))
    for pid in left:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
