# expect: COMPILE_ERROR|TIMEOUT|OUT_OF_MEMORY
# slow
# Templates that double at every level.

import ctypes

from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
template <int N, int M> struct Bomb { static constexpr long value = Bomb<N - 1, 2 * M>::value + Bomb<N - 1, 2 * M + 1>::value; };
template <int M> struct Bomb<0, M> { static constexpr long value = M; };
extern "C" long boom() { return Bomb<26, 1>::value; }
"""

lib = ctypes.CDLL(
    load_inline(name="template_bomb", cpp_sources=SOURCE, is_python_module=False, no_implicit_headers=True)
)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()

    def forward(self, x):
        return x
