# expect: OUT_OF_MEMORY
# Takes memory until there is none, or 32 GiB.

import torch
from torch import nn

held = []


class ModelNew(nn.Module):
    def __init__(self, features, limit):
        super().__init__()
        self.limit = limit
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x, gate, residual):
        for _ in range(512):
            held.append(torch.ones(1 << 24))
        return torch.zeros_like(x)
