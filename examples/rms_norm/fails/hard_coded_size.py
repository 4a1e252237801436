# expect: OUTPUT_MISMATCH
# Right for 1024 features, wrong for the other shape that the problem declares.

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, x):
        mean = x.pow(2).sum(dim=-1, keepdim=True) / 1024
        return x * torch.rsqrt(mean + self.eps) * self.weight
