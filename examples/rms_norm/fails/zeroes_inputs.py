# expect: INPUT_MUTATED|OUTPUT_MISMATCH
# Zeroes its input, so that whoever computes on it afterwards would agree with zeros.

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, x):
        x.zero_()
        return torch.zeros_like(x)
