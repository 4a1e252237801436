"""Three TF32 products for each float32 one: the halves that TF32 drops are multiplied too, so that the result is as precise as
float32, on tensor cores."""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def linear_relu(
    x, w, bias, y, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr
):
    program = tl.program_id(0)
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    group = program // (GROUP_M * tiles_n)
    first = group * GROUP_M
    height = min(tiles_m - first, GROUP_M)
    tile_m = first + (program % (GROUP_M * tiles_n)) % height
    tile_n = (program % (GROUP_M * tiles_n)) // height

    row = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    col = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    x_at = x + (row % M)[:, None] * K + k[None, :]
    w_at = w + (col % N)[None, :] * K + k[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        inside = k < K - start
        a = tl.load(x_at, mask=inside[None, :], other=0.0)
        b = tl.load(w_at, mask=inside[:, None], other=0.0)
        acc = tl.dot(a, b, acc, input_precision="tf32x3")
        x_at += BLOCK_K
        w_at += BLOCK_K
    acc = tl.maximum(acc + tl.load(bias + col, mask=col < N, other=0.0)[None, :], 0.0)
    at = row.to(tl.int64)[:, None] * N + col[None, :]
    tl.store(y + at, acc, mask=(row < M)[:, None] & (col < N)[None, :])


class ModelNew(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.linear = nn.Linear(width, hidden)

    def forward(self, x):
        x = x.contiguous()
        m, k = x.shape
        n = self.linear.weight.shape[0]
        y = x.new_empty(m, n)
        block_m, block_n = 128, 128
        linear_relu[(triton.cdiv(m, block_m) * triton.cdiv(n, block_n),)](
            x,
            self.linear.weight,
            self.linear.bias,
            y,
            m,
            n,
            k,
            BLOCK_M=block_m,
            BLOCK_N=block_n,
            BLOCK_K=32,
            GROUP_M=8,
            num_warps=8,
            num_stages=3,
        )
        return y
