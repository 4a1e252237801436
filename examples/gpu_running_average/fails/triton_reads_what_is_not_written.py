# expect: OUTPUT_MISMATCH|NONDETERMINISTIC
# The blocks of a row leave their sums in memory for those behind them, which do not wait: a race.

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def running_average(x, gates, sums, y, columns, blocks, BLOCK: tl.constexpr, BLOCKS: tl.constexpr):
    row, block = tl.program_id(0), tl.program_id(1)
    column = block * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    at = row.to(tl.int64) * columns + column
    w = tl.where(inside, tl.sigmoid(tl.load(gates + at, mask=inside, other=0.0)), 0.0)
    v = w * tl.load(x + at, mask=inside, other=0.0)
    mine = sums + (row * blocks + block) * 2
    tl.store(mine, tl.sum(v, axis=0))
    tl.store(mine + 1, tl.sum(w, axis=0))
    other = tl.arange(0, BLOCKS)
    before = other < block
    upper = tl.sum(tl.load(sums + (row * blocks + other) * 2, mask=before, other=0.0), axis=0)
    lower = tl.sum(tl.load(sums + (row * blocks + other) * 2 + 1, mask=before, other=0.0), axis=0)
    tl.store(y + at, (upper + tl.cumsum(v, axis=0)) / (lower + tl.cumsum(w, axis=0)), mask=inside)


class ModelNew(nn.Module):
    def forward(self, x, gates):
        y = torch.empty_like(x)
        rows, columns = x.shape
        blocks = triton.cdiv(columns, 512)
        sums = x.new_zeros(rows, blocks, 2)
        running_average[(rows, blocks)](
            x, gates, sums, y, columns, blocks, BLOCK=512, BLOCKS=triton.next_power_of_2(blocks), num_warps=1
        )
        return y
