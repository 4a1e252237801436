# expect: OUTPUT_MISMATCH
# Every block of a row begins at nothing: the first 2048 places are right.

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def running_average(x, gates, y, columns, BLOCK: tl.constexpr):
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    at = tl.program_id(0).to(tl.int64) * columns + column
    w = tl.where(inside, tl.sigmoid(tl.load(gates + at, mask=inside, other=0.0)), 0.0)
    v = w * tl.load(x + at, mask=inside, other=0.0)
    tl.store(y + at, tl.cumsum(v, axis=0) / tl.cumsum(w, axis=0), mask=inside)


class ModelNew(nn.Module):
    def forward(self, x, gates):
        y = torch.empty_like(x)
        rows, columns = x.shape
        running_average[(rows, triton.cdiv(columns, 2048))](x, gates, y, columns, BLOCK=2048)
        return y
