# expect: RUNTIME_ERROR|OUT_OF_MEMORY|CRASHED|TIMEOUT|OUTPUT_MISMATCH
# Opens ten thousand files and closes none.

import tempfile

import torch
from torch import nn

held = []


class ModelNew(nn.Module):
    def __init__(self, features, limit):
        super().__init__()
        self.limit = limit
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x, gate, residual):
        for _ in range(10_000):
            held.append(tempfile.TemporaryFile())
        return torch.zeros_like(x)
