"""What a call is made of: kernels by name on a GPU, operators of torch on a processor.

It is recorded in the candidate's own process: a claim. It convicts who does not lie; who lies has to explain the time from
outside (`referee.compliance`).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernelevo_evaluator.messages.runner import MOST_TRACED, Counted, Traced, TracedPart

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CALLS = 5
LONG_US = 500_000.0
"""Calls that are traced, fewer where they would take longer than this; of a processor's the one in the middle counts, by the
share that operators hold, of a GPU's times the mean."""


def trace(call: Callable[..., Any], arguments: Sequence[Any], device: torch.device, nonce: int) -> Traced:
    """Call a model a few times and record what runs."""
    wall = _timed(call, arguments, device)
    calls = max(1, min(CALLS, int(LONG_US / max(1.0, wall))))
    if device.type == "cuda":
        wall = min(_timed(call, arguments, device) for _ in range(calls))
        parts = _kernels(call, arguments, calls)
    else:
        wall, parts = _operators(call, arguments, device, calls)
    parts.sort(key=lambda part: part.us, reverse=True)
    return Traced(nonce=nonce, wall_us=wall, parts=tuple(parts[:MOST_TRACED]))


def count_operations(call: Callable[..., Any], arguments: Sequence[Any], nonce: int) -> Counted:
    """Of a call's products, by the formulas of torch's operators."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        call(*arguments)
    return Counted(nonce=nonce, operations=int(counter.get_total_flops()))


def _timed(call: Callable[..., Any], arguments: Sequence[Any], device: torch.device) -> float:
    start = time.perf_counter_ns()
    call(*arguments)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return max(0.0, (time.perf_counter_ns() - start) / 1000)


def _kernels(call: Callable[..., Any], arguments: Sequence[Any], calls: int) -> list[TracedPart]:
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(calls):
            call(*arguments)
        torch.cuda.synchronize()
    return [
        TracedPart(
            name=str(event.key)[:200], us=float(event.self_device_time_total) / calls, count=round(event.count / calls)
        )
        for event in profiler.key_averages()
        if event.device_type == DeviceType.CUDA
    ]


class _Operators(TorchDispatchMode):  # type: ignore[misc]
    """Times of torch's operators, each below its decompositions, and what taking them cost."""

    def __init__(self) -> None:
        super().__init__()
        self.us: dict[str, float] = {}
        self.count: dict[str, int] = {}
        self.cost_us = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        entered = time.perf_counter_ns()
        name = str(func)
        start = time.perf_counter_ns()
        result = func(*args, **(kwargs or {}))
        end = time.perf_counter_ns()
        self.us[name] = self.us.get(name, 0.0) + max(0, end - start) / 1000
        self.count[name] = self.count.get(name, 0) + 1
        self.cost_us += max(0, time.perf_counter_ns() - end + start - entered) / 1000
        return result


def _operators(
    call: Callable[..., Any], arguments: Sequence[Any], device: torch.device, calls: int
) -> tuple[float, list[TracedPart]]:
    """A call's time and its operators'. Both of calls side by side: a host's speed moves within a few.

    Tracing costs more than what its own clock sees: the call's time is that of a call without it, where that is the shorter.
    """
    seen: list[tuple[float, float, _Operators]] = []
    for _ in range(calls):
        plain = _timed(call, arguments, device)
        with _Operators() as operators:
            traced = _timed(call, arguments, device)
        held = sum(operators.us.values())
        wall = max(held, min(plain, traced - operators.cost_us))
        seen.append((held / wall if wall > 0 else 0.0, wall, operators))
    seen.sort(key=lambda one: one[0])
    _, wall, middle = seen[len(seen) // 2]
    return wall, [TracedPart(name=name[:200], us=us, count=middle.count[name]) for name, us in middle.us.items()]
