# expect: COMPILE_ERROR|LOAD_ERROR
# `silu` is no function of CUDA. PyCUDA runs nvcc at import and raises its message.

import pycuda.autoprimaryctx  # noqa: F401
import torch
from pycuda.compiler import SourceModule
from torch import nn

CUDA_SOURCE = r"""
__global__ void chain(const float* a, const float* b, const float* bias, float* y, int features, float alpha) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= features) return;
  const size_t at = size_t(blockIdx.y) * features + column;
  const float d = a[at] - b[at];
  y[at] = silu(a[at] + bias[column]) * fminf(fmaxf(b[at], -3.0f), 3.0f) + alpha * d * d;
}
"""

chain = SourceModule(CUDA_SOURCE).get_function("chain")


class ModelNew(nn.Module):
    def __init__(self, features, alpha):
        super().__init__()
        self.bias = nn.Parameter(torch.empty(features))

    def forward(self, a, b):
        raise NotImplementedError("it does not build")
