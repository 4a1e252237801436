# expect: OUTPUT_MISMATCH
# Remembers its answers by the input's address, which stays while the content changes.

import torch
from torch import nn

seen = {}


class ModelNew(nn.Module):
    def forward(self, x):
        key = x.data_ptr()
        if key not in seen:
            seen[key] = torch.softmax(x, dim=-1)
        return seen[key]
