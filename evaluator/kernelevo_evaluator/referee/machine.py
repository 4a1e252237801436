"""What this machine can move, measured once by the referee, and how large its last-level cache is."""

from __future__ import annotations

import time
from pathlib import Path

import torch

FLOOR_MARGIN = 2.0
"""A candidate is below the floor only when it beats the measured read bandwidth by this factor: another tenant of the host may
have slowed the measurement, and part of the ring may still lie in a cache."""


def last_level_cache_bytes() -> int:
    """Of the largest cache of the first core; 32 MiB where the host does not say."""
    sizes = []
    for entry in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = entry.read_text().strip()
        unit = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 1)
        sizes.append(int(text.rstrip("KM")) * unit)
    return max(sizes, default=32 << 20)


def read_bandwidth_gb_per_s(nbytes: int = 256 << 20) -> float:
    """The best of several passes over a cold buffer, in 1e9 bytes a second, with all of this process's threads."""
    buffer = torch.ones(nbytes // 8, dtype=torch.int64)
    best = 0.0
    for _ in range(5):
        start = time.perf_counter()
        buffer.sum()
        best = max(best, nbytes / (time.perf_counter() - start) / 1e9)
    return best


def copy_bandwidth_gb_per_s(nbytes: int = 128 << 20) -> float:
    """Read plus write of a large copy, the best of several, in 1e9 bytes a second."""
    source, target = torch.ones(nbytes // 8, dtype=torch.int64), torch.zeros(nbytes // 8, dtype=torch.int64)
    best = 0.0
    for _ in range(5):
        start = time.perf_counter()
        target.copy_(source)
        best = max(best, 2 * nbytes / (time.perf_counter() - start) / 1e9)
    return best


def multiply_rate_tflop_per_s(size: int = 768) -> float:
    """Dense float32 multiply-add rate of a matrix product, the best of several, in 1e12 operations a second."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    best = 0.0
    for _ in range(4):
        start = time.perf_counter()
        a @ b
        best = max(best, 2 * size**3 / (time.perf_counter() - start) / 1e12)
    return best
