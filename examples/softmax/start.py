"""A first kernel: one thread, a row at a time. What a suite's search begins with."""

import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#define THREADS 1     // tune: 1, 2, 4, 8
#define CHUNK_ROWS 8  // tune: 1, 4, 8, 32, 128

// e^x for x <= 0: 2^n times a polynomial on [-ln2/2, ln2/2]; relative error about 2e-7.
static inline float exponential(float x) {
  x = x > -87.0f ? x : -87.0f;
  const float shifted = x * 1.44269504f + 12582912.0f;  // rounds to the nearest integer
  const float n = shifted - 12582912.0f;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return p * __builtin_bit_cast(float, ((int)n + 127) << 23);
}

extern "C" void softmax(const float* x, float* y, long rows, long cols) {
  #pragma omp parallel for num_threads(THREADS) schedule(static, CHUNK_ROWS)
  for (long r = 0; r < rows; ++r) {
    const float* in = x + r * cols;
    float* out = y + r * cols;
    float top = in[0];
    #pragma omp simd reduction(max : top)
    for (long c = 0; c < cols; ++c) top = top > in[c] ? top : in[c];
    float sum = 0.0f;
    #pragma omp simd reduction(+ : sum)
    for (long c = 0; c < cols; ++c) {
      out[c] = exponential(in[c] - top);
      sum += out[c];
    }
    const float scale = 1.0f / sum;
    #pragma omp simd
    for (long c = 0; c < cols; ++c) out[c] *= scale;
  }
}
"""

# What lets the compiler turn the clamps into min and max and vectorise the loop. Not -ffast-math: it would undo the rounding.
FLAGS = [
    "-O3",
    "-march=native",
    "-fopenmp",
    "-fno-trapping-math",
    "-fno-math-errno",
    "-ffinite-math-only",
    "-fno-signed-zeros",
]
lib = ctypes.CDLL(
    load_inline(
        name="softmax",
        cpp_sources=SOURCE,
        is_python_module=False,
        no_implicit_headers=True,
        extra_cflags=FLAGS,
        extra_ldflags=["-fopenmp"],
    )
)
P, L = ctypes.c_void_p, ctypes.c_long
lib.softmax.argtypes = [P, P, L, L]
lib.softmax.restype = None


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        rows, cols = x.shape
        lib.softmax(x.data_ptr(), y.data_ptr(), rows, cols)
        return y
