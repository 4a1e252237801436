# expect: OUTPUT_MISMATCH
# Remembers its answers by two elements of the content.

import torch
from torch import nn

seen = {}


class ModelNew(nn.Module):
    def forward(self, x):
        key = (x[0, 0].item(), x[-1, -1].item(), x.shape)
        if key not in seen:
            seen[key] = torch.softmax(x, dim=-1)
        return seen[key]
