# expect: OUTPUT_MISMATCH
# Rounds the weights to e4m3 as they are: most of them lie among its subnormals, where hardly a bit is left.

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def product(x, w, y, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    col = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    x_at = x + (row % M)[:, None] * K + k[None, :]
    w_at = w + (col % N)[None, :] * K + k[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        inside = k < K - start
        a = tl.load(x_at + start, mask=inside[None, :], other=0.0)
        b = tl.load(w_at + start, mask=inside[:, None], other=0.0)
        acc = tl.dot(a, b, acc)
    tl.store(y + row[:, None] * N + col[None, :], acc, mask=(row < M)[:, None] & (col < N)[None, :])


class ModelNew(nn.Module):
    def __init__(self, width, hidden, eps):
        super().__init__()
        self.eps = eps

    def load_reference_state(self, state):
        self.norm = state["norm"]
        self.packed = state["linear.weight"].to(torch.float8_e4m3fn)

    def forward(self, x):
        normed = x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + self.eps) * self.norm
        (m, k), n = x.shape, self.packed.shape[0]
        y = x.new_empty(m, n)
        product[(triton.cdiv(m, 128), triton.cdiv(n, 128))](
            normed.to(torch.float8_e4m3fn), self.packed, y, m, n, k, BLOCK_M=128, BLOCK_N=128, BLOCK_K=128, num_warps=8
        )
        return y
