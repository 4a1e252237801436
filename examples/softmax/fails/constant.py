# expect: OUTPUT_MISMATCH
# The mean of every softmax; within an absolute tolerance of small outputs, and no answer.

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.full_like(x, 1 / x.shape[-1])
