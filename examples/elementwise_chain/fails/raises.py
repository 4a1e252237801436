# expect: RUNTIME_ERROR
# Raises, with a message of ten megabytes.

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features, limit):
        super().__init__()
        self.limit = limit
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x, gate, residual):
        raise ValueError("x" * 10_000_000)
