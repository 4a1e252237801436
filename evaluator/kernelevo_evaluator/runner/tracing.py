"""What a call is made of: kernels by name on a GPU, operators of torch on a processor.

It is recorded in the candidate's own process: a claim. It convicts who does not lie; who lies has to explain the time from
outside (`referee.compliance`).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernelevo_evaluator.messages.runner import MOST_TRACED, Traced, TracedPart

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CALLS = 5
LONG_US = 500_000.0
"""Calls that are traced, fewer where they would take longer than this; of a processor's times the least counts, of a GPU's the
mean."""


def trace(call: Callable[..., Any], arguments: Sequence[Any], device: torch.device, nonce: int) -> Traced:
    """Call a model a few times and record what runs."""
    calls = max(1, min(CALLS, int(LONG_US / max(1.0, _timed(call, arguments, device)))))
    wall = min(_timed(call, arguments, device) for _ in range(calls))
    parts = (_kernels if device.type == "cuda" else _operators)(call, arguments, calls)
    parts.sort(key=lambda part: part.us, reverse=True)
    return Traced(nonce=nonce, wall_us=wall, parts=tuple(parts[:MOST_TRACED]))


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
        TracedPart(name=str(event.key)[:200], us=float(event.self_device_time_total) / calls, count=int(event.count))
        for event in profiler.key_averages()
        if event.device_type == DeviceType.CUDA
    ]


class _Operators(TorchDispatchMode):  # type: ignore[misc]
    """Times of torch's operators, each below its decompositions."""

    def __init__(self) -> None:
        super().__init__()
        self.us: dict[str, float] = {}
        self.count: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        start = time.perf_counter_ns()
        result = func(*args, **(kwargs or {}))
        name = str(func)
        self.us[name] = self.us.get(name, 0.0) + max(0, time.perf_counter_ns() - start) / 1000
        self.count[name] = self.count.get(name, 0) + 1
        return result


def _operators(call: Callable[..., Any], arguments: Sequence[Any], calls: int) -> list[TracedPart]:
    best: dict[str, TracedPart] = {}
    for _ in range(calls):
        with _Operators() as seen:
            call(*arguments)
        for name, us in seen.us.items():
            if name not in best or us < best[name].us:
                best[name] = TracedPart(name=name[:200], us=us, count=seen.count[name])
    return list(best.values())
