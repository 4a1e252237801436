# expect: OUTPUT_MISMATCH
# Scaled to the first element and kept small: drifts away once the inputs grow.

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        e = torch.exp((x - x[:, :1]).clamp(max=3.0))
        return e / e.sum(dim=-1, keepdim=True)
