"""A kernel that a warm runner compiles and launches: Triton's compiler and launcher are loaded before a candidate comes."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def _double(x, y, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(y + offsets, tl.load(x + offsets, mask=mask) * 2, mask=mask)


def launch() -> None:
    """Compile and launch it."""
    x = torch.ones(1000, device="cuda")
    _double[(4,)](x, torch.empty_like(x), x.numel(), BLOCK=256)
