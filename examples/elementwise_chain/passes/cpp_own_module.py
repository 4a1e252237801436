"""A Python module of its own, without torch's headers: pointers go in as integers."""

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <pybind11/pybind11.h>
#include <cmath>
#include <cstdint>

static void chain(std::uintptr_t x, std::uintptr_t bias, std::uintptr_t gate, std::uintptr_t residual, std::uintptr_t y,
                  long rows, long cols, float limit) {
  const float *px = (const float*)x, *pb = (const float*)bias, *pg = (const float*)gate, *pr = (const float*)residual;
  float* py = (float*)y;
  pybind11::gil_scoped_release release;
  #pragma omp parallel for schedule(static)
  for (long r = 0; r < rows; ++r) {
    for (long i = r * cols, c = 0; c < cols; ++i, ++c) {
      const float v = px[i] + pb[c];
      const float gelu = 0.5f * v * (1.0f + std::tanh(0.7978845608f * (v + 0.044715f * v * v * v)));
      const float sum = gelu / (1.0f + std::exp(-pg[i])) + pr[i];
      py[i] = std::fmin(std::fmax(sum, -limit), limit);
    }
  }
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("chain", &chain); }
"""

module = load_inline(
    name="chain_own_module",
    cpp_sources=SOURCE,
    no_implicit_headers=True,
    extra_cflags=["-O3", "-march=native", "-ffast-math", "-fopenmp"],
    extra_ldflags=["-fopenmp"],
)


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
        module.chain(*pointers, rows, cols, self.limit)
        return y
