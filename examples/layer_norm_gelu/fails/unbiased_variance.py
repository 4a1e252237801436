# expect: OUTPUT_MISMATCH
# Divides by n - 1: a difference of less than a thousandth, and not rounding.

import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        y = (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True) + self.norm.eps)
        return F.gelu(y * self.norm.weight + self.norm.bias, approximate="tanh")
