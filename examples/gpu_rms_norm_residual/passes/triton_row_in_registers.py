"""Both inputs are read once and both outputs written once; sums in float32."""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def add_rms_norm(x, residual, weight, y, total, features, eps, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * features
    column = tl.arange(0, BLOCK)
    inside = column < features
    at = start + column
    v = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) + tl.load(residual + at, mask=inside, other=0.0).to(
        tl.float32
    )
    tl.store(total + at, v, mask=inside)
    scale = tl.rsqrt(tl.sum(v * v, axis=0) / features + eps)
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + at, v * scale * w, mask=inside)


class ModelNew(nn.Module):
    def __init__(self, features, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(features))

    def forward(self, x, residual):
        x, residual = x.contiguous(), residual.contiguous()
        y, total = torch.empty_like(x), torch.empty_like(x)
        rows, features = x.shape
        block = triton.next_power_of_2(features)
        add_rms_norm[(rows,)](
            x, residual, self.weight, y, total, features, self.eps, BLOCK=block, num_warps=8 if block >= 4096 else 4
        )
        return y, total
