"""One pass over memory: each row is read once from memory and once more from the cache. C++ through ctypes, built in a moment."""

import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cmath>

extern "C" void rms_norm(const float* x, const float* weight, float* y, long rows, long cols, float eps) {
  #pragma omp parallel for schedule(static)
  for (long r = 0; r < rows; ++r) {
    const float* in = x + r * cols;
    float* out = y + r * cols;
    float sum = 0.0f;
    #pragma omp simd reduction(+ : sum)
    for (long c = 0; c < cols; ++c) sum += in[c] * in[c];
    const float scale = 1.0f / std::sqrt(sum / cols + eps);
    #pragma omp simd
    for (long c = 0; c < cols; ++c) out[c] = in[c] * scale * weight[c];
  }
}
"""

FLAGS = ["-O3", "-march=native", "-fopenmp"]
lib = ctypes.CDLL(
    load_inline(
        name="rms_norm",
        cpp_sources=SOURCE,
        is_python_module=False,
        no_implicit_headers=True,
        extra_cflags=FLAGS,
        extra_ldflags=["-fopenmp"],
    )
)
P, L = ctypes.c_void_p, ctypes.c_long
lib.rms_norm.argtypes = [P, P, P, L, L, ctypes.c_float]
lib.rms_norm.restype = None


class ModelNew(nn.Module):
    def __init__(self, features, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        rows, cols = x.shape
        lib.rms_norm(x.data_ptr(), self.weight.data_ptr(), y.data_ptr(), rows, cols, self.eps)
        return y
