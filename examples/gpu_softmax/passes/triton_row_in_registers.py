"""One row for each program, held in registers: read once, written once."""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def softmax_row(x, y, columns, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * columns
    column = tl.arange(0, BLOCK)
    inside = column < columns
    v = tl.load(x + start + column, mask=inside, other=float("-inf"))
    v = tl.exp(v - tl.max(v, axis=0))
    tl.store(y + start + column, v / tl.sum(v, axis=0), mask=inside)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        rows, columns = x.shape
        block = triton.next_power_of_2(columns)
        softmax_row[(rows,)](x, y, columns, BLOCK=block, num_warps=16 if block >= 8192 else 4)
        return y
