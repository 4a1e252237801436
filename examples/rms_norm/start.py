"""A plain starting kernel: one thread, no vectors, the whole input swept twice. What the demo's search begins with."""

import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <algorithm>
#include <cmath>

#define THREADS 1        // tune: 1, 2, 4
#define BLOCK_ROWS 1024  // tune: 1, 4, 16, 64, 256, 1024
constexpr int LANES = 1;   // tune: 1, 4, 8, 16, 32
constexpr int UNROLL = 1;  // tune: 1, 2, 4, 8

// Sum of squares of one row, kept in LANES partial sums.
static float sum_of_squares(const float* in, long cols) {
  float partial[LANES] = {};
  long c = 0;
  for (; c + LANES <= cols; c += LANES)
    for (int lane = 0; lane < LANES; ++lane) partial[lane] += in[c + lane] * in[c + lane];
  for (; c < cols; ++c) partial[0] += in[c] * in[c];
  float sum = 0.0f;
  for (int lane = 0; lane < LANES; ++lane) sum += partial[lane];
  return sum;
}

static void scale_row(const float* in, const float* weight, float* out, long cols, float scale) {
  long c = 0;
  for (; c + UNROLL <= cols; c += UNROLL)
    for (int i = 0; i < UNROLL; ++i) out[c + i] = in[c + i] * scale * weight[c + i];
  for (; c < cols; ++c) out[c] = in[c] * scale * weight[c];
}

// The rows are taken in blocks: first the sums of a block, then its results.
extern "C" void rms_norm(const float* x, const float* weight, float* y, long rows, long cols, float eps) {
  #pragma omp parallel for num_threads(THREADS)
  for (long first = 0; first < rows; first += BLOCK_ROWS) {
    const long count = std::min<long>(BLOCK_ROWS, rows - first);
    float scale[BLOCK_ROWS];
    for (long r = 0; r < count; ++r)
      scale[r] = 1.0f / std::sqrt(sum_of_squares(x + (first + r) * cols, cols) / cols + eps);
    for (long r = 0; r < count; ++r)
      scale_row(x + (first + r) * cols, weight, y + (first + r) * cols, cols, scale[r]);
  }
}
"""

FLAGS = ["-O1", "-fopenmp"]
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
