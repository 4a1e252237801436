"""From how a sandbox ended to what that says of the code inside. One table, for server and referee alike."""

from __future__ import annotations

import signal

from kernelevo_api.types import LimitKind, SandboxEnd, SandboxEnding, Verdict


def exhausted_memory(error: str) -> LimitKind:
    """Which memory an error of this name says to be exhausted: torch has one of its own for a device's."""
    return LimitKind.DEVICE_MEMORY if error == "OutOfMemoryError" else LimitKind.MEMORY


def explain_ending(ending: SandboxEnding, whose: str) -> tuple[Verdict, LimitKind | None, str]:
    """Verdict, exhausted limit and message for a runner that ended while it owed an answer.

    `whose` begins the message, e.g. "the candidate". A normal exit is a crash too: a runner ends only when it is told to.
    """
    peak = f"; it had used {ending.peak_memory_bytes / 2**20:.0f} MiB" if ending.peak_memory_bytes else ""
    match ending.kind:
        case SandboxEnd.OUT_OF_MEMORY:
            return Verdict.OUT_OF_MEMORY, LimitKind.MEMORY, f"{whose} used more memory than its limit{peak}"
        case SandboxEnd.OUT_OF_DEVICE_MEMORY:
            return (
                Verdict.OUT_OF_MEMORY,
                LimitKind.DEVICE_MEMORY,
                f"{whose} {ending.detail or 'used more device memory than its limit'}",
            )
        case SandboxEnd.WALL_TIMEOUT:
            return Verdict.TIMEOUT, LimitKind.RUN_TIME, f"{whose} used up its time"
        case SandboxEnd.CPU_TIMEOUT:
            return Verdict.TIMEOUT, LimitKind.CPU_TIME, f"{whose} used up its processor time"
        case SandboxEnd.OUTPUT_LIMIT:
            return Verdict.RUNTIME_ERROR, LimitKind.OUTPUT, f"{whose} printed more than its limit; print less"
        case SandboxEnd.PROCESS_LIMIT:
            detail = ending.detail or "had more processes and threads than its limit"
            return Verdict.RUNTIME_ERROR, LimitKind.PROCESSES, f"{whose} {detail}"
        case SandboxEnd.FORBIDDEN_CALL:
            return Verdict.SANDBOX_VIOLATION, None, f"{whose} made a system call that the sandbox forbids"
        case SandboxEnd.SIGNALED:
            name = _signal_name(ending.signal)
            if ending.signal == signal.SIGXFSZ:
                return (
                    Verdict.CRASHED,
                    LimitKind.FILE_SIZE,
                    f"{whose} was ended by {name}: it wrote a file beyond its limit",
                )
            return Verdict.CRASHED, None, f"{whose} was ended by {name}{_hint(ending.signal)}"
        case SandboxEnd.KILLED:
            return Verdict.CRASHED, None, f"{whose} closed its channel and was ended"
        case _:
            return Verdict.CRASHED, None, f"{whose} exited with code {ending.exit_code} while it owed an answer"


def _signal_name(number: int | None) -> str:
    if number is None:
        return "a signal"
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _hint(number: int | None) -> str:
    if number == signal.SIGSEGV:
        return ": it touched memory that is not its own"
    if number == signal.SIGABRT:
        return ": an assertion or the allocator stopped it"
    if number == signal.SIGFPE:
        return ": an integer division by zero"
    if number == signal.SIGILL:
        return ": an instruction this processor does not have"
    return ""
