# expect: WRONG_INTERFACE
# Returns the normalised sum alone; the reference returns the sum as well.

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def add_rms_norm(x, residual, weight, y, features, eps, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * features
    column = tl.arange(0, BLOCK)
    inside = column < features
    at = start + column
    v = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) + tl.load(residual + at, mask=inside, other=0.0).to(
        tl.float32
    )
    scale = tl.rsqrt(tl.sum(v * v, axis=0) / features + eps)
    tl.store(y + at, v * scale * tl.load(weight + column, mask=inside, other=0.0).to(tl.float32), mask=inside)


class ModelNew(nn.Module):
    def __init__(self, features, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(features))

    def forward(self, x, residual):
        y = torch.empty_like(x)
        rows, features = x.shape
        add_rms_norm[(rows,)](
            x, residual, self.weight, y, features, self.eps, BLOCK=triton.next_power_of_2(features), num_warps=8
        )
        return y
