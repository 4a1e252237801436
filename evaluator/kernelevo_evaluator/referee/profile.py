"""Where a call's time goes: launches by time, and how near the call is to what the device can do.

The roofline model of Williams, Waterman and Patterson (2009), over the least bytes and operations that the problem asks for: a
kernel that moves more than it has to is far from the roof, which is what its author should learn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelevo_api.types import Bottleneck, KernelLaunch, Profile, Roofline
from kernelevo_evaluator.messages.runner import TraceCalls, Traced
from kernelevo_evaluator.referee.compliance import is_library, is_work
from kernelevo_evaluator.referee.rings import CHECK_RING
from kernelevo_evaluator.referee.runners import RunnerFailed, nonce

if TYPE_CHECKING:
    from kernelevo_api.types import ProblemReport
    from kernelevo_evaluator.messages.referee import MachineFacts
    from kernelevo_evaluator.referee.checks import Subject
    from kernelevo_evaluator.referee.reference import Reference

NEAR = 0.6
"""Share of a limit from which on it is what holds a call up."""
LAUNCHED = 0.5
"""Share of a call's time below which its kernels do not explain it."""
MOST_LAUNCHES = 40
OWN_CODE = "(the candidate's own code)"


def record(
    subject: Subject, reference: Reference, report: ProblemReport, facts: MachineFacts, call_us: float | None
) -> Profile:
    """Trace a few calls of a candidate, on the inputs that lie in its check ring, and count what the reference computes.

    Raises:
        Decided: a runner ended, or ran out of time.
    """
    try:
        trace = subject.runner.ask(TraceCalls(nonce=nonce(), ring=CHECK_RING, slot=0), Traced)
    except RunnerFailed as error:
        return Profile(call_us=call_us, remarks=(f"what a call runs could not be recorded: {error}"[:1000],))
    remarks: tuple[str, ...] = ()
    operations = 0
    try:
        operations = reference.count_operations()
    except RunnerFailed as error:
        remarks = (f"the reference's operations could not be counted: {error}"[:1000],)
    policy = reference.policy
    roofline = roofline_of(
        call_us or 0.0,
        nbytes=report.compulsory_bytes,
        operations=operations,
        facts=facts,
        dtype=policy.dtype,
        math=policy.math,
    )
    on_gpu = reference.space.device.type == "cuda"
    return profile_of(trace, on_gpu=on_gpu, call_us=call_us, roofline=roofline, remarks=remarks)


def profile_of(
    trace: Traced,
    *,
    on_gpu: bool,
    call_us: float | None,
    roofline: Roofline | None,
    remarks: tuple[str, ...] = (),
) -> Profile:
    """What a trace and a call's time say. `call_us`: by the clock outside, where the call was timed."""
    launches = _on_gpu(trace) if on_gpu else _on_cpu(trace)
    traced_us = sum(launch.total_us for launch in launches)
    return Profile(
        launches=tuple(launches[:MOST_LAUNCHES]),
        call_us=call_us,
        traced_us=traced_us,
        roofline=roofline,
        bottleneck=_bottleneck(roofline, traced_us if on_gpu else None, call_us),
        remarks=remarks,
    )


def roofline_of(
    call_us: float, *, nbytes: int, operations: int, facts: MachineFacts, dtype: str, math: str
) -> Roofline | None:
    """A call of so many microseconds beside the machine's limits; nothing where the call moves and computes nothing.

    Args:
        nbytes: that are read and written once.
        operations: of the reference's products, a multiply-add being two.
        dtype: the problem's, e.g. "float32".
        math: "ieee" or "tf32", the problem's policy. The rate of TF32 products is not measured: nothing is said of it.
    """
    if call_us <= 0.0 or not (nbytes or operations):
        return None
    gb_per_s = nbytes / call_us / 1e3
    tflop_per_s = operations / call_us / 1e6
    rate = facts.rates.get(dtype) if operations and math != "tf32" else None
    return Roofline(
        bytes=nbytes,
        gb_per_s=gb_per_s,
        bandwidth_share=gb_per_s / facts.copy_gb_per_s,
        operations=operations,
        tflop_per_s=tflop_per_s,
        rate_share=tflop_per_s / rate if rate else None,
    )


def _on_gpu(trace: Traced) -> list[KernelLaunch]:
    return [
        KernelLaunch(kernel=part.name, count=part.count, total_us=part.us, of_candidate=not is_library(part.name))
        for part in sorted(trace.parts, key=lambda part: -part.us)
    ]


def _on_cpu(trace: Traced) -> list[KernelLaunch]:
    """torch's operators, and what they leave of the call."""
    launches = [
        KernelLaunch(kernel=part.name, count=part.count, total_us=part.us) for part in trace.parts if is_work(part.name)
    ]
    own = trace.wall_us - sum(launch.total_us for launch in launches)
    if own > 0.0:
        launches.append(KernelLaunch(kernel=OWN_CODE, count=1, total_us=own, of_candidate=True))
    return sorted(launches, key=lambda launch: -launch.total_us)


def _bottleneck(roofline: Roofline | None, traced_us: float | None, call_us: float | None) -> Bottleneck | None:
    if roofline is None or call_us is None:
        return None
    computing, moving = roofline.rate_share or 0.0, roofline.bandwidth_share
    if max(computing, moving) >= NEAR:
        return Bottleneck.COMPUTE if computing > moving else Bottleneck.MEMORY
    if traced_us is not None and 0.0 < traced_us < LAUNCHED * call_us:
        return Bottleneck.LAUNCH
    return Bottleneck.NEITHER
