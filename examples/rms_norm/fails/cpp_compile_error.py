# expect: COMPILE_ERROR
# Not C++: the compiler's message must come back.

import ctypes

from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
extern "C" void rms_norm(const float* x, float* y, long count) {
  for (long i = 0; i < count; ++i) y[i] = x[i] * undeclared_scale;
}
"""

lib = ctypes.CDLL(
    load_inline(name="rms_norm_error", cpp_sources=SOURCE, is_python_module=False, no_implicit_headers=True)
)


class ModelNew(nn.Module):
    def forward(self, x):
        return x
