"""load_inline as torch documents it, with tensors in the interface: the chain in one pass, four values a thread."""

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

CPP_SOURCE = "torch::Tensor chain(torch::Tensor a, torch::Tensor b, torch::Tensor bias, double alpha);"

CUDA_SOURCE = r"""
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/extension.h>

constexpr int THREADS = 256;

__device__ float step(float a, float b, float bias, float alpha) {
  const float s = a + bias, d = a - b;
  return s / (1.0f + __expf(-s)) * fminf(fmaxf(b, -3.0f), 3.0f) + alpha * d * d;
}

__global__ void __launch_bounds__(THREADS) chain_kernel(
    const float4* __restrict__ a, const float4* __restrict__ b, const float4* __restrict__ bias, float4* __restrict__ y,
    int width, float alpha) {
  const int column = blockIdx.x * THREADS + threadIdx.x;
  if (column >= width) return;
  const size_t at = size_t(blockIdx.y) * width + column;
  const float4 u = a[at], v = b[at], w = bias[column];
  y[at] = make_float4(
      step(u.x, v.x, w.x, alpha), step(u.y, v.y, w.y, alpha), step(u.z, v.z, w.z, alpha), step(u.w, v.w, w.w, alpha));
}

torch::Tensor chain(torch::Tensor a, torch::Tensor b, torch::Tensor bias, double alpha) {
  TORCH_CHECK(a.is_contiguous() && b.is_contiguous() && a.scalar_type() == torch::kFloat32);
  TORCH_CHECK(a.size(0) < 65536 && a.size(1) % 4 == 0, "fewer than 65536 rows of a multiple of 4 values are taken");
  auto y = torch::empty_like(a);
  const int width = a.size(1) / 4;
  chain_kernel<<<dim3((width + THREADS - 1) / THREADS, a.size(0)), THREADS, 0, c10::cuda::getCurrentCUDAStream()>>>(
      reinterpret_cast<const float4*>(a.data_ptr<float>()), reinterpret_cast<const float4*>(b.data_ptr<float>()),
      reinterpret_cast<const float4*>(bias.data_ptr<float>()), reinterpret_cast<float4*>(y.data_ptr<float>()), width, alpha);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}
"""

lib = load_inline(
    name="elementwise_chain",
    cpp_sources=CPP_SOURCE,
    cuda_sources=CUDA_SOURCE,
    functions=["chain"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def __init__(self, features, alpha):
        super().__init__()
        self.alpha = alpha
        self.bias = nn.Parameter(torch.empty(features))

    def forward(self, a, b):
        return lib.chain(a.contiguous(), b.contiguous(), self.bias, self.alpha)
