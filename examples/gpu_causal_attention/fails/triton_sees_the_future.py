# expect: OUTPUT_MISMATCH
# Leaves out whole blocks of later keys but does not mask the block on the diagonal.

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def attention(q, k, v, y, length, scale, WIDTH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    block = tl.program_id(0)
    base = tl.program_id(1).to(tl.int64) * length * WIDTH
    row = block * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.arange(0, BLOCK_N)
    d = tl.arange(0, WIDTH)
    inside = (row < length)[:, None]
    q_tile = tl.load(q + base + row[:, None] * WIDTH + d[None, :], mask=inside, other=0.0)
    acc = tl.zeros((BLOCK_M, WIDTH), dtype=tl.float32)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    largest = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    for first in range(0, min((block + 1) * BLOCK_M, length), BLOCK_N):
        there = first + column < length
        k_tile = tl.load(k + base + (first + column)[None, :] * WIDTH + d[:, None], mask=there[None, :], other=0.0)
        v_tile = tl.load(v + base + (first + column)[:, None] * WIDTH + d[None, :], mask=there[:, None], other=0.0)
        scores = tl.where(there[None, :], tl.dot(q_tile, k_tile) * scale, float("-inf"))
        now = tl.maximum(largest, tl.max(scores, axis=1))
        p = tl.exp(scores - now[:, None])
        shrink = tl.exp(largest - now)
        total = total * shrink + tl.sum(p, axis=1)
        acc = tl.dot(p.to(v_tile.dtype), v_tile, acc * shrink[:, None])
        largest = now
    tl.store(y + base + row[:, None] * WIDTH + d[None, :], acc / total[:, None], mask=inside)


class ModelNew(nn.Module):
    def __init__(self, length, width):
        super().__init__()
        self.scale = width**-0.5

    def forward(self, q, k, v):
        y = torch.empty_like(q)
        batch, heads, length, width = q.shape
        attention[(triton.cdiv(length, 64), batch * heads)](
            q, k, v, y, length, self.scale, WIDTH=width, BLOCK_M=64, BLOCK_N=64, num_warps=4
        )
        return y
