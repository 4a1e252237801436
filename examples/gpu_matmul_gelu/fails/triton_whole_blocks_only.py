# expect: OUTPUT_MISMATCH
# Walks over whole blocks of the inner dimension and leaves the rest out: right for the timed shape alone.

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def linear_gelu_add(
    x, w, bias, residual, y, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    col = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    x_at = x + (row % M)[:, None] * K + k[None, :]
    w_at = w + (col % N)[None, :] * K + k[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(K // BLOCK_K):
        acc = tl.dot(tl.load(x_at + step * BLOCK_K), tl.load(w_at + step * BLOCK_K), acc)
    acc += tl.load(bias + col, mask=col < N, other=0.0).to(tl.float32)[None, :]
    acc = acc * tl.sigmoid(1.5957691216057308 * (acc + 0.044715 * acc * acc * acc))
    at = row[:, None] * N + col[None, :]
    inside = (row < M)[:, None] & (col < N)[None, :]
    tl.store(y + at, acc + tl.load(residual + at, mask=inside, other=0.0).to(tl.float32), mask=inside)


class ModelNew(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.linear = nn.Linear(width, hidden)

    def forward(self, x, residual):
        (m, k), n = x.shape, residual.shape[1]
        y = torch.empty_like(residual)
        linear_gelu_add[(triton.cdiv(m, 128), triton.cdiv(n, 128))](
            x,
            self.linear.weight,
            self.linear.bias,
            residual,
            y,
            m,
            n,
            k,
            BLOCK_M=128,
            BLOCK_N=128,
            BLOCK_K=64,
            num_warps=8,
        )
        return y
