# expect: LOAD_ERROR|WRONG_INTERFACE
# Takes other arguments than Model.

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        return x
