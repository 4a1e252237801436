# expect: LOAD_ERROR
# Builds, and asks the library for a function that it does not have.

import ctypes

from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = 'extern "C" void normalise(const float* x, float* y, long count) {}'
lib = ctypes.CDLL(
    load_inline(name="rms_norm_symbol", cpp_sources=SOURCE, is_python_module=False, no_implicit_headers=True)
)
lib.rms_norm.restype = None


class ModelNew(nn.Module):
    def forward(self, x):
        return x
