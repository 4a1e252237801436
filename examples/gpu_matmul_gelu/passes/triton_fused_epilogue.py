"""A tiled product whose tile stays in registers until bias, GELU and residual are in it: the result is written once."""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def linear_gelu_add(
    x,
    w,
    bias,
    residual,
    y,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    # Programs that run at the same time share rows of x and of w in the L2: they go through the tiles in groups of rows.
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
    # Rows beyond the end read row 0 and so on: what they give is not stored.
    x_at = x + (row % M)[:, None] * K + k[None, :]
    w_at = w + (col % N)[None, :] * K + k[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        inside = k < K - start
        a = tl.load(x_at, mask=inside[None, :], other=0.0)
        b = tl.load(w_at, mask=inside[:, None], other=0.0)
        acc = tl.dot(a, b, acc)
        x_at += BLOCK_K
        w_at += BLOCK_K

    acc += tl.load(bias + col, mask=col < N, other=0.0).to(tl.float32)[None, :]
    # 0.5 (1 + tanh(u)) is sigmoid(2 u).
    acc = acc * tl.sigmoid(1.5957691216057308 * (acc + 0.044715 * acc * acc * acc))
    at = row.to(tl.int64)[:, None] * N + col[None, :]
    inside = (row < M)[:, None] & (col < N)[None, :]
    acc += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + at, acc, mask=inside)


class ModelNew(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.linear = nn.Linear(width, hidden)

    def forward(self, x, residual):
        x, residual = x.contiguous(), residual.contiguous()
        m, k = x.shape
        n = self.linear.weight.shape[0]
        y = torch.empty_like(residual)
        block_m, block_n = 128, 256
        linear_gelu_add[(triton.cdiv(m, block_m) * triton.cdiv(n, block_n),)](
            x,
            self.linear.weight,
            self.linear.bias,
            residual,
            y,
            m,
            n,
            k,
            BLOCK_M=block_m,
            BLOCK_N=block_n,
            BLOCK_K=64,
            GROUP_M=8,
            num_warps=8,
            num_stages=3,
        )
        return y
