# expect: RUNTIME_ERROR|CRASHED
# The same by way of an exception.

import sys

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features, limit):
        super().__init__()
        self.limit = limit
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x, gate, residual):
        sys.exit(0)
