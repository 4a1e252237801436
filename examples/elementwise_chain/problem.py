"""The elementwise tail of a gated layer: bias, GELU, gate, residual, clamp."""

import torch
import torch.nn.functional as F
from torch import nn

batch_size = 512
features = 1024

KERNELEVO = {"shapes": [{"batch_size": 37, "features": 1000}]}


class Model(nn.Module):
    def __init__(self, features, limit):
        super().__init__()
        self.limit = limit
        self.bias = nn.Parameter(torch.randn(features))

    def forward(self, x, gate, residual):
        """x, gate, residual: (batch_size, features) -> the same shape."""
        x = F.gelu(x + self.bias, approximate="tanh")
        x = x * torch.sigmoid(gate)
        return torch.clamp(x + residual, -self.limit, self.limit)


def get_inputs():
    return [torch.randn(batch_size, features) for _ in range(3)]


def get_init_inputs():
    return [features, 3.0]
