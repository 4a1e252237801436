# expect: NONDETERMINISTIC|OUTPUT_MISMATCH
# Right most of the time: every third call is wrong, as with a race that mostly goes well.

import torch
from torch import nn

calls = 0


class ModelNew(nn.Module):
    def __init__(self, features, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, x):
        global calls
        calls += 1
        y = x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + self.eps) * self.weight
        if calls % 3 == 0:
            y[7] = y[8]
        return y
