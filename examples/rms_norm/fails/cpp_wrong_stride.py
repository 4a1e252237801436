# expect: OUTPUT_MISMATCH
# A kernel that mixes up two rows.

import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cmath>

extern "C" void rms_norm(const float* x, const float* w, float* y, long rows, long cols, float eps) {
  for (long r = 0; r < rows; ++r) {
    const float* in = x + (r > 0 ? r - 1 : 0) * cols;
    float sum = 0.0f;
    for (long c = 0; c < cols; ++c) sum += in[c] * in[c];
    const float scale = 1.0f / std::sqrt(sum / cols + eps);
    for (long c = 0; c < cols; ++c) y[r * cols + c] = x[r * cols + c] * scale * w[c];
  }
}
"""

lib = ctypes.CDLL(
    load_inline(
        name="rms_norm_stride",
        cpp_sources=SOURCE,
        is_python_module=False,
        no_implicit_headers=True,
        extra_cflags=["-O3"],
    )
)
P, L = ctypes.c_void_p, ctypes.c_long
lib.rms_norm.argtypes = [P, P, P, L, L, ctypes.c_float]


class ModelNew(nn.Module):
    def __init__(self, features, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, x):
        y = torch.empty_like(x)
        lib.rms_norm(x.data_ptr(), self.weight.data_ptr(), y.data_ptr(), *x.shape, self.eps)
        return y
