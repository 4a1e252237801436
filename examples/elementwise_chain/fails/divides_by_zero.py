# expect: CRASHED
# An integer division by zero in C++.

import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = 'extern "C" int divide(int a, volatile int b) { return a / b; }'
lib = ctypes.CDLL(load_inline(name="divide", cpp_sources=SOURCE, is_python_module=False, no_implicit_headers=True))


class ModelNew(nn.Module):
    def __init__(self, features, limit):
        super().__init__()
        self.limit = limit
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x, gate, residual):
        return x * lib.divide(1, 0)
