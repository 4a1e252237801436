"""Layer normalisation, then one half of the features through GELU as a gate for the other half."""

import torch
import torch.nn.functional as F
from torch import nn

rows = 10240
features = 2048

KERNELEVO = {
    "languages": ["triton", "cuda_inline", "pycuda", "cute"],
    "shapes": [{"rows": 7, "features": 300}],
}


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(2 * features)
        nn.init.uniform_(self.norm.weight, 0.5, 1.5)
        nn.init.normal_(self.norm.bias, std=0.5)

    def forward(self, x):
        """x: (rows, 2 * features) -> (rows, features)."""
        gate, value = self.norm(x).chunk(2, dim=-1)
        return F.gelu(gate) * value


def get_inputs():
    return [torch.randn(rows, 2 * features)]


def get_init_inputs():
    return [features]
