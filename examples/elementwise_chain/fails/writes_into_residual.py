# expect: INPUT_MUTATED
# Saves a buffer by using its caller's.

import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features, limit):
        super().__init__()
        self.limit = limit
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x, gate, residual):
        residual += F.gelu(x + self.bias, approximate="tanh") * torch.sigmoid(gate)
        return residual.clamp(-self.limit, self.limit)
