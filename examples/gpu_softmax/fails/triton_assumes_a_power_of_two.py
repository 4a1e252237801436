# expect: OUTPUT_MISMATCH|RUNTIME_ERROR|CRASHED
# Right for the timed shape. Without a mask it takes the next row's values for its own where rows have another length.

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def softmax_row(x, y, columns, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * columns + tl.arange(0, BLOCK)
    v = tl.load(x + at)
    v = tl.exp(v - tl.max(v, axis=0))
    tl.store(y + at, v / tl.sum(v, axis=0))


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        rows, columns = x.shape
        softmax_row[(rows,)](x, y, columns, BLOCK=triton.next_power_of_2(columns), num_warps=16)
        return y
