# expect: OUTPUT_MISMATCH|NONDETERMINISTIC
# Noise of a thousandth on every element.

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, x):
        y = x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + self.eps) * self.weight
        return y * (1 + 1e-3 * torch.randn_like(y))
