"""Softmax over the last dimension, in the steps that make it safe for large inputs."""

import torch
from torch import nn

batch_size = 1024
features = 1024

KERNELEVO = {"shapes": [{"batch_size": 37, "features": 1000}]}


class Model(nn.Module):
    def forward(self, x):
        """x: (batch_size, features) -> the same shape."""
        x = x - x.amax(dim=-1, keepdim=True)
        x = torch.exp(x)
        return x / x.sum(dim=-1, keepdim=True)


def get_inputs():
    return [torch.randn(batch_size, features)]


def get_init_inputs():
    return []
