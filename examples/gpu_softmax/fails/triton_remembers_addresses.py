# expect: OUTPUT_MISMATCH
# Computes once for each address of an input and returns what it kept from then on, whatever lies there now.

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


kept = {}


class ModelNew(nn.Module):
    def forward(self, x):
        rows, columns = x.shape
        key = (x.data_ptr(), x.shape)
        if key not in kept:
            kept[key] = torch.empty_like(x)
            softmax_row[(rows,)](x, kept[key], columns, BLOCK=triton.next_power_of_2(columns), num_warps=16)
        return kept[key]
