"""Keeps the core that runs what is timed from falling asleep between blocks.

A core that idles takes 100 to 400 microseconds to come back on a virtual machine, the longer it slept the more: several per cent
of a block. A process of the lowest scheduling class keeps it busy and gives way at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

# Ends with the referee (PR_SET_PDEATHSIG).
_PROGRAM = "import ctypes; ctypes.CDLL(None).prctl(1, 9)\nwhile True: pass"


class Awake:
    """While it is entered, `core` does not sleep. Without one, or where the kernel refuses, nothing happens."""

    def __init__(self, core: int | None) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        if core is None:
            return
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _PROGRAM], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        try:
            os.sched_setscheduler(process.pid, os.SCHED_IDLE, os.sched_param(0))
            os.sched_setaffinity(process.pid, {core})
        except OSError:
            process.kill()
            process.wait()
            return
        os.kill(process.pid, signal.SIGSTOP)
        self._process = process

    def __enter__(self) -> None:
        self._signal(signal.SIGCONT)

    def __exit__(self, *_: object) -> None:
        self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)
