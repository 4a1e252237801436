"""Problems and frames of the cases that need a GPU."""

from __future__ import annotations

import textwrap

from case import Problem

ROWS = Problem(
    source="""
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)

ROWS = 4096

def get_inputs():
    return [torch.randn(ROWS, 1024)]
"""
)
"""Long enough for calls to be timed one by one, short enough for graphs to be tried."""

PRODUCT = Problem(
    source="""
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x, w):
        return x @ w

SIZE = 512

def get_inputs():
    return [torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)]
"""
)

TF32 = Problem(source=PRODUCT.source, policy={"math": "tf32"})

_FRAME = """
import ctypes, os, sys, threading, time
import torch
import triton
import triton.language as tl
from torch import nn

@triton.jit
def rows(x, y, columns: tl.constexpr):
    at = tl.program_id(0) * columns + tl.arange(0, columns)
    v = tl.load(x + at)
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + at, e / tl.sum(e, 0))
{top}

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
        self.known = {{}}
        {init}

    def compute(self, x, y=None):
        y = torch.empty_like(x) if y is None else y
        rows[(x.shape[0],)](x, y, x.shape[1])
        return y

    def forward(self, x):
        self.calls += 1
        {body}
"""


def rows(body: str = "return self.compute(x)", *, top: str = "", init: str = "pass") -> str:
    """A candidate for `ROWS` in Triton: honest but for the lines given."""
    return _FRAME.format(top=textwrap.dedent(top), init=_inner(init), body=_inner(body))


def _inner(text: str) -> str:
    return textwrap.dedent(text).strip().replace("\n", "\n        ")


HONEST = rows()


def product(precision: str, cast: str = "") -> str:
    """A candidate for `PRODUCT` in Triton."""
    return f'''
import torch
import triton
import triton.language as tl
from torch import nn

@triton.jit
def multiply(a, b, c, N: tl.constexpr, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    j = tl.program_id(1) * B + tl.arange(0, B)
    total = tl.zeros((B, B), tl.float32)
    for k in range(0, N, B):
        n = k + tl.arange(0, B)
        p = tl.load(a + i[:, None] * N + n[None, :]){cast}
        q = tl.load(b + n[:, None] * N + j[None, :]){cast}
        total += tl.dot(p, q, input_precision="{precision}")
    tl.store(c + i[:, None] * N + j[None, :], total)

class ModelNew(nn.Module):
    def forward(self, x, w):
        y = torch.empty_like(x)
        n = x.shape[0]
        multiply[(n // 32, n // 32)](x, w, y, n, 32)
        return y
'''


_CUDA = '''
import ctypes
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cuda_runtime.h>

// A block a row. Each thread holds the sum of a part of it, and adds up those of all.
__global__ void rows(const float* x, float* y, int columns) {
  extern __shared__ float part[];
  const float* from = x + size_t(blockIdx.x) * columns;
  float* to = y + size_t(blockIdx.x) * columns;
  float largest = -INFINITY, sum = 0.0f;
  for (int c = 0; c < columns; ++c) largest = fmaxf(largest, from[c]);
  for (int c = threadIdx.x; c < columns; c += blockDim.x) sum += expf(from[c] - largest);
  part[threadIdx.x] = sum;
  {sync}
  float total = 0.0f;
  for (int t = 0; t < blockDim.x; ++t) total += part[t];
  for (int c = threadIdx.x; c < columns; c += blockDim.x) to[c] = expf(from[c] - largest) / total;
}
{more}

extern "C" void call(const float* x, float* y, int n, int columns, cudaStream_t stream) {
  {launch}
}
"""
lib = ctypes.CDLL(
    load_inline(name="rows", cpp_sources="", cuda_sources=SOURCE, is_python_module=False, no_implicit_headers=True)
)

class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        of = [ctypes.c_void_p(t.data_ptr()) for t in (x, y)]
        lib.call(*of, ctypes.c_int(x.shape[0]), ctypes.c_int(x.shape[1]), stream)
        return y
'''


def cuda_rows(
    sync: str = "__syncthreads();",
    shared: str = "64 * sizeof(float)",
    more: str = "",
    launch: str = "rows<<<n, 64, {shared}, stream>>>(x, y, columns);",
) -> str:
    """A candidate for `ROWS` in CUDA, whose launch nobody looks at: honest but for how its threads wait, what it asks for, and
    what it launches."""
    launched = launch.replace("{shared}", shared)
    return _CUDA.replace("{sync}", sync).replace("{more}", more).replace("{launch}", launched)
