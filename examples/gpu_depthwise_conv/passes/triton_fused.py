"""The taps of a place lie in the first-level cache: one read from memory, one write, no padded copy."""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def causal_conv_silu(x, weight, bias, y, channels, length, TAPS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    channel = row % channels
    start = row.to(tl.int64) * length
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), dtype=tl.float32) + tl.load(bias + channel)
    for tap in tl.static_range(TAPS):
        place = at - (TAPS - 1 - tap)
        v = tl.load(x + start + place, mask=(place >= 0) & (place < length), other=0.0)
        acc += v * tl.load(weight + channel * TAPS + tap)
    tl.store(y + start + at, acc * tl.sigmoid(acc), mask=at < length)


class ModelNew(nn.Module):
    def __init__(self, channels, taps):
        super().__init__()
        self.taps = taps
        self.weight = nn.Parameter(torch.empty(channels, 1, taps))
        self.bias = nn.Parameter(torch.empty(channels))

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        batch, channels, length = x.shape
        block = 1024
        causal_conv_silu[(batch * channels, triton.cdiv(length, block))](
            x, self.weight, self.bias, y, channels, length, TAPS=self.taps, BLOCK=block, num_warps=4
        )
        return y
