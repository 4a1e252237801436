# expect: NOT_THE_LANGUAGE
# Right, but no kernel of a language that the problem asks for.

import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features, alpha):
        super().__init__()
        self.alpha = alpha
        self.bias = nn.Parameter(torch.empty(features))

    def forward(self, a, b):
        d = a - b
        return torch.addcmul(F.silu(a + self.bias) * b.clamp(-3.0, 3.0), d, d, value=self.alpha)
