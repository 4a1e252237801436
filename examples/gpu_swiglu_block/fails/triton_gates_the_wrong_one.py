# expect: OUTPUT_MISMATCH
# SiLU goes over the product that should be gated, not over the gate.

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def gate_times_up(gates, ups, y, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    g = tl.load(gates + at, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(ups + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + at, g * u * tl.sigmoid(u), mask=inside)


class ModelNew(nn.Module):
    def __init__(self, width, hidden, eps):
        super().__init__()
        self.eps = eps
        self.norm = nn.Parameter(torch.empty(width))
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        normed = x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + self.eps) * self.norm
        gates, ups = self.gate(normed), self.up(normed)
        y = torch.empty_like(gates)
        gate_times_up[(triton.cdiv(y.numel(), 2048),)](gates, ups, y, y.numel(), BLOCK=2048)
        return x + self.down(y)
