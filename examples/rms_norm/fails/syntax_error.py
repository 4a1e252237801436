# expect: COMPILE_ERROR
# Not Python.

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x)
        return x
