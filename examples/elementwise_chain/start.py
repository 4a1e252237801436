"""A plain starting kernel: the whole chain in one loop, on one thread, for any processor. What the demo's search begins with."""

import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#define THREADS 1     // tune: 1, 2, 4
#define BLOCK_ROWS 8  // tune: 1, 4, 8, 16, 64
constexpr int STRIP = 256;  // tune: 64, 256, 1024

// e^x within about 2e-7 relative, clamped to the range of float.
static inline float exponential(float x) {
  x = x > -87.0f ? x : -87.0f;
  x = x < 88.0f ? x : 88.0f;
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

// gelu(v) = v * sigmoid(2u), u the argument of the tanh: one exponential does for both.
static void strip(const float* x, const float* bias, const float* gate, const float* residual, float* y, long count,
                  float limit) {
  #pragma omp simd
  for (long c = 0; c < count; ++c) {
    const float v = x[c] + bias[c];
    const float u = 0.7978845608f * (v + 0.044715f * v * v * v);
    const float denominator = (1.0f + exponential(-2.0f * u)) * (1.0f + exponential(-gate[c]));
    const float sum = v / denominator + residual[c];
    const float low = sum > -limit ? sum : -limit;
    y[c] = low < limit ? low : limit;
  }
}

extern "C" void chain(const float* x, const float* bias, const float* gate, const float* residual, float* y,
                      long rows, long cols, float limit) {
  #pragma omp parallel for num_threads(THREADS) schedule(static, BLOCK_ROWS)
  for (long r = 0; r < rows; ++r)
    for (long first = 0; first < cols; first += STRIP) {
      const long at = r * cols + first, count = cols - first < STRIP ? cols - first : STRIP;
      strip(x + at, bias + first, gate + at, residual + at, y + at, count, limit);
    }
}
"""

FLAGS = ["-O2", "-fopenmp", "-fno-trapping-math", "-fno-math-errno", "-ffinite-math-only", "-fno-signed-zeros"]
lib = ctypes.CDLL(
    load_inline(
        name="chain",
        cpp_sources=SOURCE,
        is_python_module=False,
        no_implicit_headers=True,
        extra_cflags=FLAGS,
        extra_ldflags=["-fopenmp"],
    )
)
P, L = ctypes.c_void_p, ctypes.c_long
lib.chain.argtypes = [P, P, P, P, P, L, L, ctypes.c_float]
lib.chain.restype = None


class ModelNew(nn.Module):
    def __init__(self, features, limit):
        super().__init__()
        self.limit = limit
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x, gate, residual):
        x, gate, residual = x.contiguous(), gate.contiguous(), residual.contiguous()
        y = torch.empty_like(x)
        rows, cols = x.shape
        pointers = [t.data_ptr() for t in (x, self.bias, gate, residual, y)]
        lib.chain(*pointers, rows, cols, self.limit)
        return y
