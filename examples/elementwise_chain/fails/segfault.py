# expect: CRASHED
# Writes to address zero.

import ctypes

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features, limit):
        super().__init__()
        self.limit = limit
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x, gate, residual):
        ctypes.memset(0, 0, 1)
        return x
