# expect: OUTPUT_MISMATCH
# One row of two thousand is never written: too few to move a mean, enough to be wrong.

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, x):
        y = torch.zeros_like(x)
        y[:-1] = (x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + self.eps) * self.weight)[:-1]
        return y
