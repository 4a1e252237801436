# expect: OUTPUT_MISMATCH
# Hands its input back.

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x
