# expect: RUNTIME_ERROR|OUT_OF_MEMORY|TIMEOUT|CRASHED
# Forks until it may not. Four thousand children later somebody should have said no.

import os
import time

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features, limit):
        super().__init__()
        self.limit = limit
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x, gate, residual):
        for _ in range(4096):
            if os.fork() == 0:
                time.sleep(60)
                os._exit(0)
        return torch.zeros_like(x)
