"""Both sums are scanned block by block, the last value of a block carried into the next: two reads and a write."""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def running_average(x, gates, y, columns, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * columns
    column = tl.arange(0, BLOCK)
    upper = 0.0
    lower = 0.0
    for first in range(0, columns, BLOCK):
        inside = first + column < columns
        at = start + first + column
        w = tl.where(inside, tl.sigmoid(tl.load(gates + at, mask=inside, other=0.0)), 0.0)
        v = w * tl.load(x + at, mask=inside, other=0.0)
        tl.store(y + at, (upper + tl.cumsum(v, axis=0)) / (lower + tl.cumsum(w, axis=0)), mask=inside)
        upper += tl.sum(v, axis=0)
        lower += tl.sum(w, axis=0)


class ModelNew(nn.Module):
    def forward(self, x, gates):
        x, gates = x.contiguous(), gates.contiguous()
        y = torch.empty_like(x)
        rows, columns = x.shape
        running_average[(rows,)](x, gates, y, columns, BLOCK=2048, num_warps=4)
        return y
