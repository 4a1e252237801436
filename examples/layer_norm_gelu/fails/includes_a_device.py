# expect: COMPILE_ERROR|TIMEOUT|OUT_OF_MEMORY
# slow
# A header without end: the build has limits too.

import ctypes

from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include "/dev/zero"
"""

lib = ctypes.CDLL(
    load_inline(name="includes_a_device", cpp_sources=SOURCE, is_python_module=False, no_implicit_headers=True)
)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()

    def forward(self, x):
        return x
