"""Softmax over wide rows, in the steps that make it safe for large inputs."""

import torch
from torch import nn

rows = 2048
columns = 16384

KERNELEVO = {
    "languages": ["triton", "cuda_inline", "pycuda", "cute"],
    "shapes": [{"rows": 5, "columns": 5001}],
}


class Model(nn.Module):
    def forward(self, x):
        """x: (rows, columns) -> the same shape."""
        x = x - x.amax(dim=-1, keepdim=True)
        x = torch.exp(x)
        return x / x.sum(dim=-1, keepdim=True)


def get_inputs():
    return [torch.randn(rows, columns)]


def get_init_inputs():
    return []
