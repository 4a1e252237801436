# expect: OUTPUT_MISMATCH
# Looks for the best entry in bfloat16, in which many are equal: an index is right or wrong, there is no tolerance.

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def row_statistics(x, best, probability, entropy, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    v = tl.load(x + row.to(tl.int64) * columns + column, mask=inside, other=float("-inf"))
    rounded = v.to(tl.bfloat16).to(tl.float32)
    _, index = tl.max(rounded, axis=0, return_indices=True, return_indices_tie_break_left=True)
    d = tl.where(inside, v - tl.max(v, axis=0), 0.0)
    e = tl.where(inside, tl.exp(d), 0.0)
    s = tl.sum(e, axis=0)
    tl.store(best + row, index.to(tl.int64))
    tl.store(probability + row, 1.0 / s)
    tl.store(entropy + row, tl.log(s) - tl.sum(d * e, axis=0) / s)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, columns = x.shape
        best = torch.empty(rows, dtype=torch.int64, device=x.device)
        probability, entropy = x.new_empty(rows), x.new_empty(rows)
        row_statistics[(rows,)](
            x, best, probability, entropy, columns, BLOCK=triton.next_power_of_2(columns), num_warps=8
        )
        return best, probability, entropy
