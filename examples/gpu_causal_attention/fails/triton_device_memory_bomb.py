# expect: OUT_OF_MEMORY
# Takes device memory until there is none. The next evaluation must find it free again.

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def fill(x, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.zeros((BLOCK,), dtype=tl.float32))


kept = []


class ModelNew(nn.Module):
    def __init__(self, length, width):
        super().__init__()

    def forward(self, q, k, v):
        while True:
            piece = torch.empty(1 << 28, dtype=torch.float32, device=q.device)
            fill[(1 << 16,)](piece, BLOCK=4096)
            kept.append(piece)
