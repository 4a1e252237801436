"""How a sandbox ended, and what that says: one table."""

from __future__ import annotations

import signal

import pytest

from kernelevo_api.types import LimitKind, SandboxEnd, SandboxEnding, Verdict
from kernelevo_evaluator.lanes.runners import sandbox_ending
from kernelevo_evaluator.verdicts import explain_ending
from kernelevo_sandbox import Ending, EndKind

TABLE = {
    SandboxEnd.OUT_OF_MEMORY: (Verdict.OUT_OF_MEMORY, LimitKind.MEMORY),
    SandboxEnd.OUT_OF_DEVICE_MEMORY: (Verdict.OUT_OF_MEMORY, LimitKind.DEVICE_MEMORY),
    SandboxEnd.WALL_TIMEOUT: (Verdict.TIMEOUT, LimitKind.RUN_TIME),
    SandboxEnd.CPU_TIMEOUT: (Verdict.TIMEOUT, LimitKind.CPU_TIME),
    SandboxEnd.OUTPUT_LIMIT: (Verdict.RUNTIME_ERROR, LimitKind.OUTPUT),
    SandboxEnd.PROCESS_LIMIT: (Verdict.RUNTIME_ERROR, LimitKind.PROCESSES),
    SandboxEnd.FORBIDDEN_CALL: (Verdict.SANDBOX_VIOLATION, None),
    SandboxEnd.SIGNALED: (Verdict.CRASHED, None),
    SandboxEnd.KILLED: (Verdict.CRASHED, None),
    SandboxEnd.EXITED: (Verdict.CRASHED, None),
}


@pytest.mark.parametrize("kind", EndKind)
def test_every_ending_has_a_verdict(kind):
    ending = sandbox_ending(Ending(kind=kind, exit_code=0, signal=9))
    verdict, limit, message = explain_ending(ending, "the candidate")
    assert (verdict, limit) == TABLE[ending.kind]
    assert message.startswith("the candidate ")


def test_no_ending_is_a_pass():
    assert all(verdict is not Verdict.PASSED for verdict, _ in TABLE.values())


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGSEGV, "SIGSEGV: it touched memory"),
        (signal.SIGABRT, "SIGABRT"),
        (signal.SIGFPE, "division"),
        (signal.SIGILL, "instruction"),
        (200, "signal 200"),
        (None, "a signal"),
    ],
)
def test_signals_are_named(number, words):
    assert words in explain_ending(SandboxEnding(kind=SandboxEnd.SIGNALED, signal=number), "it")[2]


def test_a_file_beyond_its_limit_is_named():
    ending = SandboxEnding(kind=SandboxEnd.SIGNALED, signal=signal.SIGXFSZ)
    assert explain_ending(ending, "it")[:2] == (Verdict.CRASHED, LimitKind.FILE_SIZE)


def test_memory_says_how_much():
    ending = SandboxEnding(kind=SandboxEnd.OUT_OF_MEMORY, peak_memory_bytes=300 << 20)
    assert "300 MiB" in explain_ending(ending, "it")[2]


def test_a_normal_exit_is_a_crash():
    assert "code 0" in explain_ending(SandboxEnding(kind=SandboxEnd.EXITED, exit_code=0), "it")[2]
