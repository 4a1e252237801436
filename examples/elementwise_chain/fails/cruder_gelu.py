# expect: OUTPUT_MISMATCH
# x * sigmoid(1.702 x) is another function, if a near one.

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features, limit):
        super().__init__()
        self.limit = limit
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x, gate, residual):
        x = x + self.bias
        x = x * torch.sigmoid(1.702 * x) * torch.sigmoid(gate)
        return torch.clamp(x + residual, -self.limit, self.limit)
