# expect: OUTPUT_MISMATCH
# Does without the gate.

import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features, limit):
        super().__init__()
        self.limit = limit
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x, gate, residual):
        return torch.clamp(F.gelu(x + self.bias, approximate="tanh") * 0.5 + residual, -self.limit, self.limit)
