# expect: OUTPUT_MISMATCH|WRONG_INTERFACE
# A real tensor of zeros whose own methods say that all is well.

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.zeros_like(x)
        y.clone = y.contiguous = y.detach = lambda *_, **__: torch.softmax(x, dim=-1)
        y.allclose = lambda *_, **__: True
        return y
