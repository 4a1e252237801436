# expect: CRASHED|LOAD_ERROR
# A constructor in the library that runs before anyone asked for it, and leaves with success.

import ctypes

from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cstdlib>
#include <unistd.h>

__attribute__((constructor)) static void leave() { _exit(0); }
"""

lib = ctypes.CDLL(
    load_inline(name="runs_code_on_load", cpp_sources=SOURCE, is_python_module=False, no_implicit_headers=True)
)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()

    def forward(self, x):
        return x
