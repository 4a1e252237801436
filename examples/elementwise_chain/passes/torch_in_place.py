"""The same operators, in place on the first temporary: fewer fresh buffers, and the residual added by addcmul."""

import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features, limit):
        super().__init__()
        self.limit = limit
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x, gate, residual):
        activated = F.gelu(x + self.bias, approximate="tanh")
        return torch.addcmul(residual, activated, torch.sigmoid(gate)).clamp_(-self.limit, self.limit)
