"""What this lane's device can move and multiply, measured once by the referee, and what its driver says of it."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from kernelevo_evaluator.messages.referee import GpuFacts, MachineFacts

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelevo_evaluator.referee.spaces import Space

FLOOR_MARGIN = 2.0
"""A candidate is below the floor only when it beats the measured read bandwidth by this factor: another tenant of the host may
have slowed the measurement, and part of the ring may still lie in a cache."""

_READ_BYTES = {"cpu": 256 << 20, "cuda": 4 << 30}
_COPY_BYTES = {"cpu": 128 << 20, "cuda": 2 << 30}
_PROBED = 1 << 20
_MATRIX = {"cpu": 768, "cuda": 8192}


def measure(space: Space) -> MachineFacts:
    """Rates and facts of the device that a space lies on."""
    gpu = space.device.type == "cuda"
    return MachineFacts(
        torch=str(torch.__version__),
        cache_bytes=space.cache_bytes,
        read_gb_per_s=_read_bandwidth(space),
        copy_gb_per_s=_copy_bandwidth(space),
        rates=_rates(space),
        gpu=_gpu_facts() if gpu else None,
    )


def probe(space: Space) -> None:
    """Compute something known, in memory that is allocated as a ring's is.

    Raises:
        ArithmeticError: the device gave another result.
    """
    memory = space.allocate(_PROBED * 8, "probe")
    try:
        values = memory.bytes[: _PROBED * 8].view(torch.int64)
        torch.arange(_PROBED, out=values)
        total = int((values * 3 + 1).sum())
        space.synchronize()
        del values
    finally:
        memory.close()
    if total != 3 * _PROBED * (_PROBED - 1) // 2 + _PROBED:
        raise ArithmeticError(f"the device computed {total} where the result is known to be another one")


def last_level_cache_bytes() -> int:
    """Of the largest cache of the first core; 32 MiB where the host does not say."""
    sizes = []
    for entry in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = entry.read_text().strip()
        unit = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 1)
        sizes.append(int(text.rstrip("KM")) * unit)
    return max(sizes, default=32 << 20)


def _best_seconds(space: Space, work: Callable[[], object], times: int = 5) -> float:
    """The shortest of several runs, the first of which warms up."""
    best = float("inf")
    for _ in range(times):
        space.synchronize()
        start = time.perf_counter()
        work()
        space.synchronize()
        best = min(best, time.perf_counter() - start)
    return best


def _read_bandwidth(space: Space) -> float:
    """Passes over a cold buffer, in 1e9 bytes a second, with all of this process's threads."""
    nbytes = _READ_BYTES[space.device.type]
    dtype = torch.float32 if space.device.type == "cuda" else torch.int64
    buffer = torch.ones(nbytes // dtype.itemsize, dtype=dtype, device=space.device)
    return nbytes / _best_seconds(space, buffer.sum) / 1e9


def _copy_bandwidth(space: Space) -> float:
    """Read plus write of a large copy, in 1e9 bytes a second."""
    nbytes = _COPY_BYTES[space.device.type]
    source = torch.ones(nbytes // 8, dtype=torch.int64, device=space.device)
    target = torch.zeros_like(source)
    return 2 * nbytes / _best_seconds(space, lambda: target.copy_(source)) / 1e9


def _rates(space: Space) -> dict[str, float]:
    """Dense multiply-add rates of a matrix product on random numbers, in 1e12 operations a second."""
    size = _MATRIX[space.device.type]
    dtypes = [torch.float32]
    if space.device.type == "cuda":
        dtypes += [torch.float16, torch.bfloat16]
    rates = {}
    for dtype in dtypes:
        side = size // 2 if dtype is torch.float32 and size > 1024 else size
        a, b = (torch.randn(side, side, device=space.device).to(dtype) for _ in range(2))
        seconds = _best_seconds(space, functools.partial(torch.matmul, a, b), 4)
        rates[str(dtype).removeprefix("torch.")] = 2 * side**3 / seconds / 1e12
    return rates


def _gpu_facts() -> GpuFacts:
    properties = torch.cuda.get_device_properties(0)
    return GpuFacts(
        architecture=f"sm_{properties.major}{properties.minor}",
        multiprocessors=properties.multi_processor_count,
        shared_memory_per_block_bytes=properties.shared_memory_per_block_optin,
        shared_memory_per_multiprocessor_bytes=properties.shared_memory_per_multiprocessor,
        registers_per_multiprocessor=properties.regs_per_multiprocessor,
        memory_bytes=properties.total_memory,
    )
