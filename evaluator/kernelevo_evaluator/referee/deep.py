"""The deep check: what compute-sanitizer and Nsight Compute say of one call, as findings.

They run in the candidate's sandbox. A fault that they tell of is a finding; that they tell of none is no evidence, and no verdict
rests on them (docs/decisions/0025).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelevo_api.types import DeepCheck, Finding
from kernelevo_evaluator.messages.runner import MOST_TRACED
from kernelevo_evaluator.referee.counters import read_counters
from kernelevo_evaluator.referee.sanitizer import read_sanitizer

if TYPE_CHECKING:
    from kernelevo_api.types import KernelCounters
    from kernelevo_evaluator.messages.runner import Traced

SANITIZERS = ("memcheck", "racecheck")
PROFILER = "ncu"
LAUNCHES = "launches"
_CHARACTERS = 1000


def of_sanitizer(tool: str, output: str, trouble: str) -> tuple[DeepCheck, list[Finding]]:
    """What a run under compute-sanitizer comes to.

    Args:
        output: that process and tool wrote.
        trouble: why the call did not come to its end; empty where it did.
    """
    read = read_sanitizer(output)
    findings = [Finding(code=fault.code, message=f"{tool}: {fault.describe()}"[:_CHARACTERS]) for fault in read.faults]
    if read.faults:
        return DeepCheck(tool=tool, ran=True, faults=read.count, message=f"{read.count} reported"), findings
    if trouble or not read.complete:
        why = trouble or read.trouble or "it ended before it said what it had found"
        return DeepCheck(tool=tool, ran=False, message=why[:_CHARACTERS]), []
    return DeepCheck(tool=tool, ran=True, message="nothing was reported in one call"), []


def of_profiler(
    output: str, trouble: str, traced: Traced | None
) -> tuple[DeepCheck, list[Finding], tuple[KernelCounters, ...]]:
    """What a run under Nsight Compute comes to; its count of launches beside that of the trace, where there is one."""
    counted = read_counters(output)
    if trouble or counted.trouble:
        return DeepCheck(tool=LAUNCHES, ran=False, message=(trouble or counted.trouble)[:_CHARACTERS]), [], ()
    told = f"Nsight Compute counted {counted.launches} kernels in a call"
    if traced is None or len(traced.parts) >= MOST_TRACED:
        return DeepCheck(tool=LAUNCHES, ran=True, message=f"{told}; no trace to hold it beside"), [], counted.counters
    # A trace holds copies too, which are no kernels.
    launches = sum(part.count for part in traced.parts if not part.name.startswith(("Memcpy", "Memset")))
    if launches == counted.launches:
        check = DeepCheck(tool=LAUNCHES, ran=True, message=f"{told}, as many as the trace")
        return check, [], counted.counters
    message = f"{told}, the trace {launches}: what ran differs between calls, or one of the two was misled"
    check = DeepCheck(tool=LAUNCHES, ran=True, faults=1, message=message)
    return check, [Finding(code="launches_differ", message=message)], counted.counters
