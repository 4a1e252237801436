"""The whole chain in one pass: two reads and a write for each element. Programs go along the columns, so that the bias is read in order."""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def chain(a, b, bias, y, features, alpha, BLOCK: tl.constexpr):
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < features
    at = tl.program_id(0).to(tl.int64) * features + column
    u = tl.load(a + at, mask=inside, other=0.0)
    v = tl.load(b + at, mask=inside, other=0.0)
    s = u + tl.load(bias + column, mask=inside, other=0.0)
    gated = s * tl.sigmoid(s) * tl.minimum(tl.maximum(v, -3.0), 3.0)
    d = u - v
    tl.store(y + at, gated + alpha * d * d, mask=inside)


class ModelNew(nn.Module):
    def __init__(self, features, alpha):
        super().__init__()
        self.alpha = alpha
        self.bias = nn.Parameter(torch.empty(features))

    def forward(self, a, b):
        a, b = a.contiguous(), b.contiguous()
        y = torch.empty_like(a)
        rows, features = a.shape
        block = 2048
        chain[(rows, triton.cdiv(features, block))](a, b, self.bias, y, features, self.alpha, BLOCK=block, num_warps=4)
        return y
