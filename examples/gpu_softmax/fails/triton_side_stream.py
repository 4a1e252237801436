# expect: OUTPUT_MISMATCH
# The work is put on a stream of its own behind a long wait, and nobody joins it: who looks at the result looks too early.

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
    def __init__(self):
        super().__init__()
        self.side = torch.cuda.Stream()

    def forward(self, x):
        y = torch.empty_like(x)
        rows, columns = x.shape
        with torch.cuda.stream(self.side):
            torch.cuda._sleep(100_000_000)
            softmax_row[(rows,)](x, y, columns, BLOCK=triton.next_power_of_2(columns), num_warps=16)
        return y
