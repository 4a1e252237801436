"""The process that reads one long source and ends: `python -m kernelevo_evaluator.reading CPU_SECONDS MEMORY_BYTES`.

One JSON object in, one out; `apart.py` says which. What it reads is untrusted, and is never run.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from typing import Any

from kernelevo_api.errors import ProblemRefused
from kernelevo_api.json import from_json, to_json
from kernelevo_api.types import Problem
from kernelevo_evaluator.problem import read_problem
from kernelevo_evaluator.shown import show
from kernelevo_evaluator.sources import SourceError

PR_SET_PDEATHSIG = 1
LESS_URGENT = 5


def main() -> None:
    """Read, answer, end."""
    cpu_s, memory_bytes = (int(one) for one in sys.argv[1:3])
    if sys.platform == "linux":
        # Started by the thread that serves, which ends with its process.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.nice(LESS_URGENT)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    json.dump(_answer(json.load(sys.stdin)), sys.stdout)
    sys.stdout.flush()
    # Without taking a million nodes apart.
    os._exit(0)


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    if "candidate" in asked:
        shown = show(asked["candidate"])
        return {"error" if isinstance(shown, SourceError) else "shown": to_json(shown)}
    try:
        read = read_problem(from_json(asked["problem"], Problem), asked["maximum_bytes"])
    except ProblemRefused as refused:
        return {"refused": refused.message, "complaints": [one.description for one in refused.violations]}
    return {"name": read.name, "policy": to_json(read.policy)}


if __name__ == "__main__":
    try:
        main()
    except MemoryError:
        os.kill(os.getpid(), signal.SIGKILL)  # As the kernel does where it is the first to notice.
