# expect: OUTPUT_MISMATCH
# Packs the weights on its first call and never looks again; they change between checks.

import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.packed = None

    def forward(self, x):
        if self.packed is None or self.packed.shape[-1] != x.shape[-1]:
            self.packed = torch.stack([self.norm.weight, self.norm.bias]).clone()
        y = F.layer_norm(x, x.shape[-1:], self.packed[0], self.packed[1])
        return F.gelu(y, approximate="tanh")
