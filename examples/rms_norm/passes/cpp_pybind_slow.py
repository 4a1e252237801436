"""load_inline as torch's tutorials show it: tensors in C++ and bindings written by torch. Its headers make the build slow."""

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/extension.h>

torch::Tensor rms_norm(torch::Tensor x, torch::Tensor weight, double eps) {
  x = x.contiguous();
  auto y = torch::empty_like(x);
  const int64_t cols = x.size(-1), rows = x.numel() / cols;
  const float* in = x.const_data_ptr<float>();
  const float* scale_by = weight.const_data_ptr<float>();
  float* out = y.mutable_data_ptr<float>();
  at::parallel_for(0, rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* row = in + r * cols;
      float partial[16] = {};
      int64_t c = 0;
      for (; c + 16 <= cols; c += 16)
        for (int i = 0; i < 16; ++i) partial[i] += row[c + i] * row[c + i];
      float sum = 0.0f;
      for (; c < cols; ++c) sum += row[c] * row[c];
      for (float p : partial) sum += p;
      const float scale = 1.0f / std::sqrt(sum / cols + (float)eps);
      for (c = 0; c < cols; ++c) out[r * cols + c] = row[c] * scale * scale_by[c];
    }
  });
  return y;
}
"""

module = load_inline(
    name="rms_norm_pybind",
    cpp_sources=SOURCE,
    functions=["rms_norm"],
    extra_cflags=["-O3", "-march=native", "-fopenmp"],
)


class ModelNew(nn.Module):
    def __init__(self, features, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, x):
        return module.rms_norm(x, self.weight, self.eps)
