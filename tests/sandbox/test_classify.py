"""How a sandbox's end is told from its evidence: a table."""

from __future__ import annotations

import signal

import pytest

from kernelevo_sandbox import EndKind, SandboxBroken
from kernelevo_sandbox.classify import Evidence, classify

KILLED_9 = 9
EXIT_0 = 0


def exited(code: int) -> int:
    return code << 8


@pytest.mark.parametrize(
    ("evidence", "kind", "code", "number"),
    [
        (Evidence(outer_status=EXIT_0, reported_code=0), EndKind.EXITED, 0, None),
        (Evidence(outer_status=exited(3), reported_code=3), EndKind.EXITED, 3, None),
        (Evidence(outer_status=exited(128), reported_code=128), EndKind.EXITED, 128, None),
        (Evidence(outer_status=exited(139), reported_code=139), EndKind.SIGNALED, None, signal.SIGSEGV),
        (Evidence(outer_status=exited(193), reported_code=193), EndKind.EXITED, 193, None),
        (Evidence(outer_status=exited(159), reported_code=159), EndKind.FORBIDDEN_CALL, None, signal.SIGSYS),
        (Evidence(outer_status=exited(152), reported_code=152), EndKind.SIGNALED, None, signal.SIGXCPU),
        (
            Evidence(outer_status=exited(152), reported_code=152, cpu_limited=True),
            EndKind.CPU_TIMEOUT,
            None,
            signal.SIGXCPU,
        ),
        # A program whose parent we are: its own status counts, and 139 is an exit code like any other.
        (Evidence(outer_status=EXIT_0, direct_status=11), EndKind.SIGNALED, None, signal.SIGSEGV),
        (Evidence(outer_status=EXIT_0, direct_status=exited(139)), EndKind.EXITED, 139, None),
        # The kernel's count comes before everything that the program could arrange, and before our own kill.
        (Evidence(outer_status=EXIT_0, reported_code=0, oom_kills=1), EndKind.OUT_OF_MEMORY, None, None),
        (Evidence(outer_status=KILLED_9, oom_kills=2), EndKind.OUT_OF_MEMORY, None, None),
        (
            Evidence(outer_status=KILLED_9, oom_kills=1, killed_for=EndKind.WALL_TIMEOUT),
            EndKind.OUT_OF_MEMORY,
            None,
            None,
        ),
        # Our own kill comes before a status that it may have caused, or that was on its way.
        (Evidence(outer_status=KILLED_9, killed_for=EndKind.WALL_TIMEOUT), EndKind.WALL_TIMEOUT, None, None),
        (Evidence(outer_status=EXIT_0, reported_code=0, killed_for=EndKind.KILLED), EndKind.KILLED, None, None),
        (Evidence(outer_status=None, killed_for=EndKind.OUTPUT_LIMIT), EndKind.OUTPUT_LIMIT, None, None),
        (Evidence(outer_status=KILLED_9, killed_for=EndKind.PROCESS_LIMIT), EndKind.PROCESS_LIMIT, None, None),
        (Evidence(outer_status=KILLED_9, killed_for=EndKind.CPU_TIMEOUT), EndKind.CPU_TIMEOUT, None, None),
        (Evidence(outer_status=KILLED_9, killed_for=EndKind.OUT_OF_MEMORY), EndKind.OUT_OF_MEMORY, None, None),
        (
            Evidence(outer_status=KILLED_9, killed_for=EndKind.OUT_OF_DEVICE_MEMORY, killed_detail="used 60 GiB"),
            EndKind.OUT_OF_DEVICE_MEMORY,
            None,
            None,
        ),
    ],
)
def test_table(evidence: Evidence, kind: EndKind, code: int | None, number: int | None) -> None:
    found = classify(evidence)
    assert (found.kind, found.exit_code, found.signal) == (kind, code, number)
    assert found.detail


@pytest.mark.parametrize(
    ("evidence", "says"),
    [
        (Evidence(outer_status=None), "launcher died"),
        (Evidence(outer_status=KILLED_9), "signal 9"),
        (Evidence(outer_status=exited(1), stderr_tail="bwrap: Can't find source path"), "Can't find source path"),
        (Evidence(outer_status=EXIT_0), "could not be set up"),
    ],
)
def test_what_nothing_explains_is_our_fault(evidence: Evidence, says: str) -> None:
    with pytest.raises(SandboxBroken, match=says):
        classify(evidence)
