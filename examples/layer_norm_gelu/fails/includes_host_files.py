# expect: COMPILE_ERROR
# Tries to have a host's files quoted in an error message.

import ctypes

from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include "/etc/shadow"
#include "/root/.bashrc"
#include "/proc/1/environ"
"""

lib = ctypes.CDLL(
    load_inline(name="includes_host_files", cpp_sources=SOURCE, is_python_module=False, no_implicit_headers=True)
)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()

    def forward(self, x):
        return x
