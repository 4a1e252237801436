"""Decides how a sandbox ended from what was seen of it. Pure: no clock, no files, no processes."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

from kernelevo_sandbox.contract import EndKind, SandboxBroken


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the backend saw, from outside the sandbox where it could."""

    killed_for: EndKind | None = None
    """Why the backend itself ended the tree, if it did; the first reason counts."""
    killed_detail: str = ""
    """More about that, where the kind alone does not say it."""
    oom_kills: int = 0
    """Processes that the kernel killed at the cgroup's memory limit."""
    outer_status: int | None = None
    """Wait status of the process that the launcher started; `None`: the launcher died."""
    direct_status: int | None = None
    """Wait status of the program itself, where the backend is its parent."""
    reported_code: int | None = None
    """The exit code that bubblewrap reports: 128 + n for a program that signal n ended."""
    cpu_limited: bool = False
    """Whether the program had a CPU time limit, so that SIGXCPU is the limit's."""
    stderr_tail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Classified:
    """The end, with what is known of code and signal."""

    kind: EndKind
    exit_code: int | None = None
    signal: int | None = None
    detail: str = ""


_KILL_DETAILS = {
    EndKind.OUT_OF_MEMORY: "used more memory than its limit",
    EndKind.OUT_OF_DEVICE_MEMORY: "used more memory of the device than its limit",
    EndKind.WALL_TIMEOUT: "ran longer than its wall clock limit",
    EndKind.CPU_TIMEOUT: "used more CPU time than its limit",
    EndKind.OUTPUT_LIMIT: "wrote more output than its limit",
    EndKind.PROCESS_LIMIT: "had more processes than its limit",
    EndKind.KILLED: "ended by its owner",
}


def classify(evidence: Evidence) -> Classified:
    """How the sandbox ended.

    Order: the kernel's count of out-of-memory kills, then our own kill, then the program's status. Two mistakes are accepted,
    both between kinds of failure. A program that exits with 128 + n by its own will under bubblewrap is called signalled
    by n. And a program that tampers with the reaper in its own namespace can choose its exit code; so no caller may take
    an exit code for more than a claim.

    Raises:
        SandboxBroken: nothing that the program or we did explains the end.
    """
    if evidence.oom_kills > 0:
        detail = f"the kernel killed {evidence.oom_kills} of its processes at the memory limit"
        return Classified(kind=EndKind.OUT_OF_MEMORY, detail=detail)
    if evidence.killed_for is not None:
        detail = evidence.killed_detail or _KILL_DETAILS.get(evidence.killed_for, "")
        return Classified(kind=evidence.killed_for, detail=detail)
    if evidence.direct_status is not None:
        status = evidence.direct_status
        if os.WIFSIGNALED(status):
            return _signalled(os.WTERMSIG(status), evidence.cpu_limited)
        return _exited(os.WEXITSTATUS(status))
    if evidence.reported_code is not None:
        if 128 < evidence.reported_code <= 128 + signal.SIGRTMAX:
            return _signalled(evidence.reported_code - 128, evidence.cpu_limited)
        return _exited(evidence.reported_code)
    raise SandboxBroken(_unexplained(evidence))


def _exited(code: int) -> Classified:
    return Classified(kind=EndKind.EXITED, exit_code=code, detail=f"exit code {code}")


def _signalled(number: int, cpu_limited: bool) -> Classified:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    if number == signal.SIGSYS:
        return Classified(kind=EndKind.FORBIDDEN_CALL, signal=number, detail="a forbidden system call (SIGSYS)")
    if number == signal.SIGXCPU and cpu_limited:
        return Classified(kind=EndKind.CPU_TIMEOUT, signal=number, detail=_KILL_DETAILS[EndKind.CPU_TIMEOUT])
    return Classified(kind=EndKind.SIGNALED, signal=number, detail=name)


def _unexplained(evidence: Evidence) -> str:
    if evidence.outer_status is None:
        return "the launcher died, or the engine, and the sandbox with it"
    if os.WIFSIGNALED(evidence.outer_status):
        return f"something outside ended the sandbox with signal {os.WTERMSIG(evidence.outer_status)}"
    said = evidence.stderr_tail.strip() or "nothing on stderr"
    return f"the sandbox could not be set up (code {os.WEXITSTATUS(evidence.outer_status)}): {said}"
