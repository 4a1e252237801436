"""One launch in place of eight. A few rows leave most of the device idle; what counts is the latency of one row, so each gets many warps."""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def add_rms_norm(x, residual, weight, y, features, eps, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    inside = column < features
    at = tl.program_id(0) * features + column
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    v = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) + tl.load(residual + at, mask=inside, other=0.0).to(
        tl.float32
    )
    scale = tl.rsqrt(tl.sum(v * v, axis=0) / features + eps)
    tl.store(y + at, v * scale * w, mask=inside)


class ModelNew(nn.Module):
    def __init__(self, features, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(features))

    def forward(self, x, residual):
        x, residual = x.contiguous(), residual.contiguous()
        y = torch.empty_like(x)
        rows, features = x.shape
        add_rms_norm[(rows,)](
            x, residual, self.weight, y, features, self.eps, BLOCK=triton.next_power_of_2(features), num_warps=16
        )
        return y
