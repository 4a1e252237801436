"""A running average along each row, weighted by gates: two cumulative sums and their quotient."""

import torch
from torch import nn

rows = 3072
columns = 8192

KERNELEVO = {
    "languages": ["triton", "cuda_inline", "pycuda", "cute"],
    "shapes": [{"rows": 5, "columns": 2900}],
}


class Model(nn.Module):
    def forward(self, x, gates):
        """x, gates: (rows, columns) -> the same shape."""
        weights = torch.sigmoid(gates)
        return torch.cumsum(weights * x, dim=-1) / torch.cumsum(weights, dim=-1)


def get_inputs():
    return [torch.randn(rows, columns), torch.randn(rows, columns)]


def get_init_inputs():
    return []
