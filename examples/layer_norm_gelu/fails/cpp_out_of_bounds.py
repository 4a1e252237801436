# expect: CRASHED|OUTPUT_MISMATCH
# Writes far beyond the end of its output.

import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = 'extern "C" void fill(float* y, long count) { for (long i = 0; i < count; ++i) y[i] = 1.0f; }'
lib = ctypes.CDLL(load_inline(name="fill", cpp_sources=SOURCE, is_python_module=False, no_implicit_headers=True))
lib.fill.argtypes = [ctypes.c_void_p, ctypes.c_long]


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        y = torch.empty_like(x)
        lib.fill(y.data_ptr(), 1 << 34)
        return y
