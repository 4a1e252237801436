"""load_inline as torch documents it, with tensors in the interface. Sixteen bytes at a time; a thread finds its part of the sum in the
cache when the norm is known."""

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

CPP_SOURCE = "std::vector<torch::Tensor> add_rms_norm(torch::Tensor x, torch::Tensor residual, torch::Tensor weight, double eps);"

CUDA_SOURCE = r"""
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_bf16.h>
#include <torch/extension.h>

constexpr int THREADS = 256;
constexpr int WIDTH = 8;

struct alignas(16) Pack {
  __nv_bfloat16 value[WIDTH];
};

__device__ float block_sum(float value) {
  __shared__ float parts[THREADS / 32];
  for (int offset = 16; offset; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  value = parts[threadIdx.x % (THREADS / 32)];
  for (int offset = THREADS / 64; offset; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
  return value;
}

__global__ void __launch_bounds__(THREADS) add_rms_norm_kernel(
    const Pack* __restrict__ x, const Pack* __restrict__ residual, const Pack* __restrict__ weight, Pack* __restrict__ y,
    Pack* total, int packs, float eps) {
  const size_t start = size_t(blockIdx.x) * packs;
  float squares = 0.0f;
  for (int i = threadIdx.x; i < packs; i += THREADS) {
    const Pack a = x[start + i], b = residual[start + i];
    Pack sum;
    for (int j = 0; j < WIDTH; ++j) {
      const float s = __bfloat162float(a.value[j]) + __bfloat162float(b.value[j]);
      squares += s * s;
      sum.value[j] = __float2bfloat16(s);
    }
    total[start + i] = sum;
  }
  const float scale = rsqrtf(block_sum(squares) / (packs * WIDTH) + eps);
  for (int i = threadIdx.x; i < packs; i += THREADS) {
    const Pack sum = total[start + i], w = weight[i];
    Pack out;
    for (int j = 0; j < WIDTH; ++j)
      out.value[j] = __float2bfloat16(__bfloat162float(sum.value[j]) * scale * __bfloat162float(w.value[j]));
    y[start + i] = out;
  }
}

std::vector<torch::Tensor> add_rms_norm(torch::Tensor x, torch::Tensor residual, torch::Tensor weight, double eps) {
  TORCH_CHECK(x.is_contiguous() && residual.is_contiguous() && x.scalar_type() == torch::kBFloat16);
  TORCH_CHECK(x.size(1) % WIDTH == 0, "rows of a multiple of ", WIDTH, " values are taken");
  auto y = torch::empty_like(x), total = torch::empty_like(x);
  add_rms_norm_kernel<<<x.size(0), THREADS, 0, c10::cuda::getCurrentCUDAStream()>>>(
      static_cast<const Pack*>(x.data_ptr()), static_cast<const Pack*>(residual.data_ptr()),
      static_cast<const Pack*>(weight.data_ptr()), static_cast<Pack*>(y.data_ptr()), static_cast<Pack*>(total.data_ptr()),
      x.size(1) / WIDTH, eps);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return {y, total};
}
"""

lib = load_inline(
    name="add_rms_norm",
    cpp_sources=CPP_SOURCE,
    cuda_sources=CUDA_SOURCE,
    functions=["add_rms_norm"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def __init__(self, features, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(features))

    def forward(self, x, residual):
        y, total = lib.add_rms_norm(x.contiguous(), residual.contiguous(), self.weight, self.eps)
        return y, total
