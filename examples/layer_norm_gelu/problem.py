"""Layer normalisation followed by GELU."""

import torch
import torch.nn.functional as F
from torch import nn

batch_size = 1024
features = 768

KERNELEVO = {"shapes": [{"batch_size": 37, "features": 1000}]}


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        nn.init.uniform_(self.norm.weight, 0.5, 1.5)
        nn.init.normal_(self.norm.bias)

    def forward(self, x):
        """x: (batch_size, features) -> the same shape."""
        return F.gelu(self.norm(x), approximate="tanh")


def get_inputs():
    return [torch.randn(batch_size, features)]


def get_init_inputs():
    return [features]
