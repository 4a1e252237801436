# expect: OUTPUT_MISMATCH
# The approximation of GELU by tanh, where the reference takes the error function.

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def norm_geglu(x, weight, bias, y, features, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < features
    start = x + row * 2 * features
    gate = tl.load(start + column, mask=inside, other=0.0)
    value = tl.load(start + features + column, mask=inside, other=0.0)
    mean = tl.sum(gate + value, axis=0) / (2 * features)
    gate = tl.where(inside, gate - mean, 0.0)
    value = tl.where(inside, value - mean, 0.0)
    scale = tl.rsqrt(tl.sum(gate * gate + value * value, axis=0) / (2 * features) + eps)
    gate = gate * scale * tl.load(weight + column, mask=inside, other=0.0) + tl.load(
        bias + column, mask=inside, other=0.0
    )
    value = value * scale * tl.load(weight + features + column, mask=inside, other=0.0) + tl.load(
        bias + features + column, mask=inside, other=0.0
    )
    gate = gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
    tl.store(y + row * features + column, gate * value, mask=inside)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.features = features
        self.norm = nn.LayerNorm(2 * features)

    def forward(self, x):
        y = x.new_empty(x.shape[0], self.features)
        norm_geglu[(x.shape[0],)](
            x,
            self.norm.weight,
            self.norm.bias,
            y,
            self.features,
            self.norm.eps,
            BLOCK=triton.next_power_of_2(self.features),
            num_warps=8,
        )
        return y
