# expect: OUTPUT_MISMATCH
# Hopes that the memory it is given still holds somebody's right answer.

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, x):
        return torch.empty_like(x)
