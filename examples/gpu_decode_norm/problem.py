"""A residual sum and RMS normalisation of a few rows, as for one step of decoding: a call costs hardly more than its launch."""

import torch
from torch import nn

rows = 64
features = 4096

KERNELEVO = {
    "dtype": "bfloat16",
    "languages": ["triton", "cuda_inline", "pycuda", "cute"],
    "shapes": [{"rows": 3, "features": 1000}],
}


class Model(nn.Module):
    def __init__(self, features, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.rand(features) + 0.5)

    def forward(self, x, residual):
        """x, residual: (rows, features) -> the same shape."""
        total = x + residual
        return total * torch.rsqrt(total.pow(2).mean(dim=-1, keepdim=True) + self.eps) * self.weight


def get_inputs():
    return [torch.randn(rows, features), torch.randn(rows, features)]


def get_init_inputs():
    return [features, 1e-5]
