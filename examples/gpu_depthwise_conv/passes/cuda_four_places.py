"""CUDA through ctypes, without torch's headers. Each thread makes four neighbouring places from two sixteen-byte reads, of which the
second one is in the cache."""

import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

CUDA_SOURCE = r"""
#include <cuda_runtime.h>

constexpr int THREADS = 256;
constexpr int TAPS = 4;

__device__ float silu(float v) { return v / (1.0f + __expf(-v)); }

// VECTOR: rows are a multiple of four values long, and so begin on sixteen bytes.
template <bool VECTOR>
__global__ void __launch_bounds__(THREADS) causal_conv_silu(
    const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias, float* __restrict__ y,
    int channels, int length) {
  const int at = (blockIdx.y * THREADS + threadIdx.x) * 4;
  if (at >= length) return;
  const int channel = blockIdx.x % channels;
  const float* from = x + size_t(blockIdx.x) * length + at;
  float* to = y + size_t(blockIdx.x) * length + at;
  float window[8];  // places at - 4 to at + 3
  if (VECTOR) {
    *reinterpret_cast<float4*>(window) =
        at ? *reinterpret_cast<const float4*>(from - 4) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    *reinterpret_cast<float4*>(window + 4) = *reinterpret_cast<const float4*>(from);
  } else {
    for (int i = 0; i < 8; ++i) window[i] = at + i >= 4 && at + i - 4 < length ? from[i - 4] : 0.0f;
  }
  float out[4];
  for (int i = 0; i < 4; ++i) {
    float sum = bias[channel];
    for (int tap = 0; tap < TAPS; ++tap) sum += weight[channel * TAPS + tap] * window[i + 4 - (TAPS - 1 - tap)];
    out[i] = silu(sum);
  }
  if (VECTOR) {
    *reinterpret_cast<float4*>(to) = *reinterpret_cast<float4*>(out);
  } else {
    for (int i = 0; i < 4 && at + i < length; ++i) to[i] = out[i];
  }
}

extern "C" int conv(const float* x, const float* weight, const float* bias, float* y, int rows, int channels, int length,
                    cudaStream_t stream) {
  const dim3 grid(rows, (length + 4 * THREADS - 1) / (4 * THREADS));
  if (length % 4)
    causal_conv_silu<false><<<grid, THREADS, 0, stream>>>(x, weight, bias, y, channels, length);
  else
    causal_conv_silu<true><<<grid, THREADS, 0, stream>>>(x, weight, bias, y, channels, length);
  return cudaGetLastError();
}
"""

lib = ctypes.CDLL(
    load_inline(
        name="causal_conv",
        cpp_sources="",
        cuda_sources=CUDA_SOURCE,
        extra_cuda_cflags=["-O3"],
        is_python_module=False,
        no_implicit_headers=True,
    )
)
lib.conv.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int] * 3 + [ctypes.c_void_p]


class ModelNew(nn.Module):
    def __init__(self, channels, taps):
        super().__init__()
        if taps != 4:
            raise ValueError("this kernel is written for four taps")
        self.weight = nn.Parameter(torch.empty(channels, 1, taps))
        self.bias = nn.Parameter(torch.empty(channels))

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        batch, channels, length = x.shape
        error = lib.conv(
            x.data_ptr(),
            self.weight.data_ptr(),
            self.bias.data_ptr(),
            y.data_ptr(),
            batch * channels,
            channels,
            length,
            torch.cuda.current_stream().cuda_stream,
        )
        if error:
            raise RuntimeError(f"the launch failed: CUDA error {error}")
        return y
