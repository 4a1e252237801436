"""A block of rows for each program. On a host without a GPU it is checked under Triton's interpreter and not timed."""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def softmax_rows(x, y, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, COLS)[None, :]
    inside = (row < rows) & (col < cols)
    at = row * cols + col
    v = tl.load(x + at, mask=inside, other=float("-inf"))
    v = tl.exp(v - tl.max(v, axis=1)[:, None])
    tl.store(y + at, v / tl.sum(v, axis=1)[:, None], mask=inside)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        rows, cols = x.shape
        block = 16
        softmax_rows[(triton.cdiv(rows, block),)](
            x, y, rows, cols, ROWS=block, COLS=triton.next_power_of_2(cols), num_warps=8
        )
        return y
