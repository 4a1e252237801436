"""A linear layer with ReLU in float32, where TF32 is not allowed: precise products that need not be slow."""

import torch
from torch import nn

tokens = 2048
width = 2048
hidden = 2048

KERNELEVO = {
    "math": "ieee",
    "languages": ["triton", "cuda_inline", "pycuda", "cute"],
    "shapes": [{"tokens": 70, "width": 200, "hidden": 136}],
}


class Model(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.linear = nn.Linear(width, hidden)

    def forward(self, x):
        """x: (tokens, width) -> (tokens, hidden)."""
        return torch.relu(self.linear(x))


def get_inputs():
    return [torch.randn(tokens, width)]


def get_init_inputs():
    return [width, hidden]
