"""PyCUDA in torch's own context. PyCUDA launches on streams of its own only, so that one is forked from torch's and joined again."""

import pycuda.autoprimaryctx  # noqa: F401 - the context that torch uses
import pycuda.driver as cuda
import torch
from pycuda.compiler import SourceModule
from torch import nn

CUDA_SOURCE = r"""
__device__ float step(float a, float b, float bias, float alpha) {
  const float s = a + bias, d = a - b;
  return s / (1.0f + __expf(-s)) * fminf(fmaxf(b, -3.0f), 3.0f) + alpha * d * d;
}

__global__ void chain(const float4* __restrict__ a, const float4* __restrict__ b, const float4* __restrict__ bias,
                      float4* __restrict__ y, int width, float alpha) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= width) return;
  const size_t at = size_t(blockIdx.y) * width + column;
  const float4 u = a[at], v = b[at], w = bias[column];
  y[at] = make_float4(step(u.x, v.x, w.x, alpha), step(u.y, v.y, w.y, alpha), step(u.z, v.z, w.z, alpha),
                      step(u.w, v.w, w.w, alpha));
}
"""

THREADS = 256
chain = SourceModule(CUDA_SOURCE, options=["-O3"]).get_function("chain")
chain.prepare("PPPPif")
stream = cuda.Stream()
side = torch.cuda.ExternalStream(stream.handle)


class ModelNew(nn.Module):
    def __init__(self, features, alpha):
        super().__init__()
        self.alpha = alpha
        self.bias = nn.Parameter(torch.empty(features))

    def forward(self, a, b):
        a, b = a.contiguous(), b.contiguous()
        y = torch.empty_like(a)
        rows, features = a.shape
        if features % 4 or rows >= 65536:
            raise ValueError("fewer than 65536 rows of a multiple of 4 values are taken")
        width = features // 4
        current = torch.cuda.current_stream()
        side.wait_stream(current)
        chain.prepared_async_call(
            (-(-width // THREADS), rows),
            (THREADS, 1, 1),
            stream,
            a.data_ptr(),
            b.data_ptr(),
            self.bias.data_ptr(),
            y.data_ptr(),
            width,
            self.alpha,
        )
        current.wait_stream(side)
        return y
