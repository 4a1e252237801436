# expect: OUTPUT_MISMATCH
# Rounds both factors to bfloat16, which is several times as fast and three digits less precise.

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def linear_relu(x, w, bias, y, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    col = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    x_at = x + (row % M)[:, None] * K + k[None, :]
    w_at = w + (col % N)[None, :] * K + k[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        inside = k < K - start
        a = tl.load(x_at + start, mask=inside[None, :], other=0.0).to(tl.bfloat16)
        b = tl.load(w_at + start, mask=inside[:, None], other=0.0).to(tl.bfloat16)
        acc = tl.dot(a, b, acc)
    acc = tl.maximum(acc + tl.load(bias + col, mask=col < N, other=0.0)[None, :], 0.0)
    tl.store(y + row[:, None] * N + col[None, :], acc, mask=(row < M)[:, None] & (col < N)[None, :])


class ModelNew(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.linear = nn.Linear(width, hidden)

    def forward(self, x):
        (m, k), n = x.shape, self.linear.weight.shape[0]
        y = x.new_empty(m, n)
        linear_relu[(triton.cdiv(m, 128), triton.cdiv(n, 128))](
            x, self.linear.weight, self.linear.bias, y, m, n, k, BLOCK_M=128, BLOCK_N=128, BLOCK_K=32, num_warps=8
        )
        return y
