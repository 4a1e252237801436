# expect: RUNTIME_ERROR|OUT_OF_MEMORY|CRASHED
# Writes to its scratch folder until it is full, or holds 16 GiB.

import os
import tempfile

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features, limit):
        super().__init__()
        self.limit = limit
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x, gate, residual):
        block, folder = os.urandom(1 << 24), tempfile.mkdtemp()
        for number in range(128):
            with open(f"{folder}/{number}", "wb") as file:
                for _ in range(8):
                    file.write(block)
        return torch.zeros_like(x)
