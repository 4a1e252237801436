"""A linear layer over normalised activations whose tolerance leaves room for fp8 inside; the interface is bfloat16.

Rounding both factors to e4m3 (three bits of mantissa) leaves about 4 % of the result's norm as error.
"""

import torch
from torch import nn

tokens = 4096
width = 4096
hidden = 4096

KERNELEVO = {
    "dtype": "bfloat16",
    "languages": ["triton", "cuda_inline", "pycuda", "cute"],
    "tolerance": {"rtol": 0.08, "atol": 0.2},
    "shapes": [{"tokens": 150, "width": 160, "hidden": 200}],
}


class Model(nn.Module):
    def __init__(self, width, hidden, eps):
        super().__init__()
        self.eps = eps
        self.norm = nn.Parameter(torch.rand(width) + 0.5)
        self.linear = nn.Linear(width, hidden, bias=False)

    def forward(self, x):
        """x: (tokens, width) -> (tokens, hidden)."""
        normed = x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + self.eps) * self.norm
        return self.linear(normed)


def get_inputs():
    return [torch.randn(tokens, width)]


def get_init_inputs():
    return [width, hidden, 1e-5]
