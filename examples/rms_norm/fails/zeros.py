# expect: OUTPUT_MISMATCH
# Nothing is cheaper than zeros.

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, x):
        return torch.zeros_like(x)
