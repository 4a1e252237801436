# expect: COMPILE_ERROR|RUNTIME_ERROR
# `tl.silu` does not exist. Triton compiles at the first call, and names the line.

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
    gated = tl.silu(s) * tl.minimum(tl.maximum(v, -3.0), 3.0)
    tl.store(y + at, gated + alpha * (u - v) * (u - v), mask=inside)


class ModelNew(nn.Module):
    def __init__(self, features, alpha):
        super().__init__()
        self.alpha = alpha
        self.bias = nn.Parameter(torch.empty(features))

    def forward(self, a, b):
        y = torch.empty_like(a)
        rows, features = a.shape
        chain[(rows, triton.cdiv(features, 2048))](a, b, self.bias, y, features, self.alpha, BLOCK=2048)
        return y
