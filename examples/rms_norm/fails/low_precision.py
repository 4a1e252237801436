# expect: OUTPUT_MISMATCH
# Computes in bfloat16 what the problem asks in float32.

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, x):
        x, weight = x.bfloat16(), self.weight.bfloat16()
        y = x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + self.eps) * weight
        return y.float()
