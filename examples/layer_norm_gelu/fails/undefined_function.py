# expect: LOAD_ERROR|COMPILE_ERROR
# Compiles, and cannot be loaded: a function that nobody defines.

import ctypes

from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
extern "C" void nobody_defines_this();
void (*const use)() = nobody_defines_this;
extern "C" void call() { use(); }
"""

lib = ctypes.CDLL(
    load_inline(name="undefined_function", cpp_sources=SOURCE, is_python_module=False, no_implicit_headers=True)
)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()

    def forward(self, x):
        return x
