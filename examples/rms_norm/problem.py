"""RMS normalisation over the last dimension, as written in many language models."""

import torch
from torch import nn

batch_size = 512
features = 1024

KERNELEVO = {"shapes": [{"batch_size": 37, "features": 1000}]}


class Model(nn.Module):
    def __init__(self, features, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.rand(features) + 0.5)

    def forward(self, x):
        """x: (batch_size, features) -> the same shape."""
        mean_square = x.pow(2).mean(dim=-1, keepdim=True)
        return x * torch.rsqrt(mean_square + self.eps) * self.weight


def get_inputs():
    return [torch.randn(batch_size, features)]


def get_init_inputs():
    return [features, 1e-6]
