"""CUDA through ctypes: nothing of torch is included, so that it builds in seconds. A row lies in shared memory between its passes."""

import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

CUDA_SOURCE = r"""
#include <cuda_runtime.h>

constexpr int THREADS = 512;
constexpr int WARPS = THREADS / 32;

struct Max {
  static __device__ float of(float a, float b) { return fmaxf(a, b); }
};
struct Sum {
  static __device__ float of(float a, float b) { return a + b; }
};

// What all threads of a block have found, joined; each gets the result.
template <typename Join>
__device__ float joined(float value) {
  __shared__ float parts[WARPS];
  for (int offset = 16; offset; offset /= 2) value = Join::of(value, __shfl_xor_sync(~0u, value, offset));
  __syncthreads();  // the parts of an earlier call have been read
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  value = parts[threadIdx.x % WARPS];
  for (int offset = WARPS / 2; offset; offset /= 2) value = Join::of(value, __shfl_xor_sync(~0u, value, offset));
  return value;
}

template <typename Vector>
__global__ void __launch_bounds__(THREADS) softmax_row(const float* x, float* y, int columns) {
  constexpr int WIDTH = sizeof(Vector) / sizeof(float);
  extern __shared__ __align__(16) float row[];
  const auto* from = reinterpret_cast<const Vector*>(x + size_t(blockIdx.x) * columns);
  auto* to = reinterpret_cast<Vector*>(y + size_t(blockIdx.x) * columns);
  auto* kept = reinterpret_cast<Vector*>(row);

  float largest = -INFINITY;
  for (int i = threadIdx.x; i < columns / WIDTH; i += THREADS) {
    Vector v = from[i];
    kept[i] = v;
    for (int j = 0; j < WIDTH; ++j) largest = fmaxf(largest, reinterpret_cast<float*>(&v)[j]);
  }
  largest = joined<Max>(largest);
  // A thread comes back to the places that it wrote itself: the row needs no barrier.
  float sum = 0.0f;
  for (int i = threadIdx.x; i < columns / WIDTH; i += THREADS) {
    Vector v = kept[i];
    for (int j = 0; j < WIDTH; ++j) {
      float& e = reinterpret_cast<float*>(&v)[j];
      e = __expf(e - largest);
      sum += e;
    }
    kept[i] = v;
  }
  const float scale = 1.0f / joined<Sum>(sum);
  for (int i = threadIdx.x; i < columns / WIDTH; i += THREADS) {
    Vector v = kept[i];
    for (int j = 0; j < WIDTH; ++j) reinterpret_cast<float*>(&v)[j] *= scale;
    to[i] = v;
  }
}

template <typename Vector>
cudaError_t launch(const float* x, float* y, int rows, int columns, cudaStream_t stream) {
  const int bytes = columns * sizeof(float);
  cudaError_t error = cudaFuncSetAttribute(softmax_row<Vector>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  softmax_row<Vector><<<rows, THREADS, bytes, stream>>>(x, y, columns);
  return cudaGetLastError();
}

extern "C" int softmax(const float* x, float* y, int rows, int columns, cudaStream_t stream) {
  return columns % 4 ? launch<float>(x, y, rows, columns, stream) : launch<float4>(x, y, rows, columns, stream);
}
"""

lib = ctypes.CDLL(
    load_inline(
        name="softmax_rows",
        cpp_sources="",
        cuda_sources=CUDA_SOURCE,
        extra_cuda_cflags=["-O3"],
        is_python_module=False,
        no_implicit_headers=True,
    )
)
lib.softmax.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p]


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        error = lib.softmax(x.data_ptr(), y.data_ptr(), *x.shape, torch.cuda.current_stream().cuda_stream)
        if error:
            raise RuntimeError(f"the launch failed: CUDA error {error}")
        return y
