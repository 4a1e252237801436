"""PyCUDA in torch's own context: eight places a thread, warps joined by shuffles, blocks of a row carried one into the next."""

import pycuda.autoprimaryctx  # noqa: F401 - the context that torch uses
import pycuda.driver as cuda
import torch
from pycuda.compiler import SourceModule
from torch import nn

CUDA_SOURCE = r"""
#define THREADS 256
#define WARPS (THREADS / 32)
#define EACH 8

// Sums of all threads before this one; `whole` becomes the sum of all.
__device__ float2 before(float2 own, float2* whole) {
  __shared__ float2 parts[WARPS];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float2 sum = own;
  for (int offset = 1; offset < 32; offset *= 2) {
    const float x = __shfl_up_sync(~0u, sum.x, offset), y = __shfl_up_sync(~0u, sum.y, offset);
    if (lane >= offset) sum = make_float2(sum.x + x, sum.y + y);
  }
  __syncthreads();  // the parts of an earlier call have been read
  if (lane == 31) parts[warp] = sum;
  __syncthreads();
  // What the lane before this one has: sum - own would lose digits.
  float2 result = make_float2(__shfl_up_sync(~0u, sum.x, 1), __shfl_up_sync(~0u, sum.y, 1));
  if (lane == 0) result = make_float2(0.0f, 0.0f);
  *whole = make_float2(0.0f, 0.0f);
  for (int w = 0; w < WARPS; ++w) {
    if (w == warp) result = make_float2(result.x + whole->x, result.y + whole->y);
    *whole = make_float2(whole->x + parts[w].x, whole->y + parts[w].y);
  }
  return result;
}

__global__ void __launch_bounds__(THREADS) running_average(const float* __restrict__ x, const float* __restrict__ gates,
                                                           float* __restrict__ y, int columns) {
  const size_t start = size_t(blockIdx.x) * columns;
  float2 carry = make_float2(0.0f, 0.0f);
  for (int first = 0; first < columns; first += THREADS * EACH) {
    const int at = first + threadIdx.x * EACH;
    float upper[EACH], lower[EACH];
    float2 own = make_float2(0.0f, 0.0f);
    if (at + EACH <= columns && columns % 4 == 0) {
      for (int i = 0; i < EACH; i += 4) {
        *reinterpret_cast<float4*>(upper + i) = *reinterpret_cast<const float4*>(x + start + at + i);
        *reinterpret_cast<float4*>(lower + i) = *reinterpret_cast<const float4*>(gates + start + at + i);
      }
    } else {
      for (int i = 0; i < EACH; ++i) {
        upper[i] = at + i < columns ? x[start + at + i] : 0.0f;
        lower[i] = at + i < columns ? gates[start + at + i] : -INFINITY;  // a weight of nothing
      }
    }
    for (int i = 0; i < EACH; ++i) {
      lower[i] = 1.0f / (1.0f + __expf(-lower[i]));
      upper[i] *= lower[i];
      own = make_float2(own.x + upper[i], own.y + lower[i]);
    }
    float2 whole;
    float2 sum = before(own, &whole);
    sum = make_float2(sum.x + carry.x, sum.y + carry.y);
    carry = make_float2(carry.x + whole.x, carry.y + whole.y);
    for (int i = 0; i < EACH; ++i) {
      sum = make_float2(sum.x + upper[i], sum.y + lower[i]);
      upper[i] = sum.x / sum.y;
    }
    if (at + EACH <= columns && columns % 4 == 0) {
      for (int i = 0; i < EACH; i += 4)
        *reinterpret_cast<float4*>(y + start + at + i) = *reinterpret_cast<float4*>(upper + i);
    } else {
      for (int i = 0; i < EACH && at + i < columns; ++i) y[start + at + i] = upper[i];
    }
  }
}
"""

THREADS = 256
running_average = SourceModule(CUDA_SOURCE, options=["-O3"]).get_function("running_average")
running_average.prepare("PPPi")
stream = cuda.Stream()
side = torch.cuda.ExternalStream(stream.handle)


class ModelNew(nn.Module):
    def forward(self, x, gates):
        x, gates = x.contiguous(), gates.contiguous()
        y = torch.empty_like(x)
        rows, columns = x.shape
        current = torch.cuda.current_stream()
        side.wait_stream(current)
        running_average.prepared_async_call(
            (rows, 1), (THREADS, 1, 1), stream, x.data_ptr(), gates.data_ptr(), y.data_ptr(), columns
        )
        current.wait_stream(side)
        return y
