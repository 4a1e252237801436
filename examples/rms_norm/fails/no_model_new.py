# expect: WRONG_INTERFACE|LOAD_ERROR
# Defines no ModelNew.

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x
