"""Problems that the cases share, and the frames that their candidates are written in."""

from __future__ import annotations

import textwrap

from case import Problem

LINEAR = Problem(
    source="""
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return torch.relu(self.linear(x))

WIDTH = 48
ROWS = 32

def get_inputs():
    return [torch.randn(ROWS, WIDTH)]

def get_init_inputs():
    return [WIDTH]
""",
    policy={"shapes": ('{"ROWS": 7, "WIDTH": 33}',)},
)
"""relu(x @ w.T + b), with a further shape that only the fuller efforts check."""

WORK = Problem(
    source=LINEAR.source.replace("WIDTH = 48", "WIDTH = 512").replace("ROWS = 32", "ROWS = 48"),
)
"""The same with enough work a call that a block is many times longer than what starting and ending it costs."""

LONGER = Problem(
    source=LINEAR.source.replace("WIDTH = 48", "WIDTH = 512").replace("ROWS = 32", "ROWS = 192"),
)
"""The same with so much work a call that what torch and Python spend between operators is no part of it."""

CHAIN = Problem(
    source="""
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        for _ in range(12):
            x = torch.sin(x)
        return x

def get_inputs():
    return [torch.randn(64, 1024)]
"""
)
"""Much work for each element, which needs no other one."""

TWO = Problem(
    source="""
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x), torch.tanh(x)

def get_inputs():
    return [torch.randn(16, 16)]
"""
)

TINY = Problem(
    source=LINEAR.source.replace("torch.relu(self.linear(x))", "1e-4 * torch.relu(self.linear(x))"),
    policy={"atol": 1e-2},
)
"""Outputs that are far smaller than the absolute tolerance which the problem asks for."""

_FRAME = """
import ctypes, gc, os, random, signal, socket, statistics, subprocess, sys, tempfile, threading, time
import torch
from torch import nn
{top}

class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.calls = 0
        self.known = {{}}
        {init}

    def compute(self, x):
        return torch.relu(self.linear(x))

    def forward(self, x):
        self.calls += 1
        {body}
"""


def linear(body: str = "return self.compute(x)", *, top: str = "", init: str = "pass") -> str:
    """A candidate for `LINEAR` and `WORK`: honest but for the lines given."""
    return _FRAME.format(top=textwrap.dedent(top), init=_inner(init), body=_inner(body))


def _inner(text: str) -> str:
    return textwrap.dedent(text).strip().replace("\n", "\n        ")


HONEST = linear("return torch.clamp(torch.addmm(self.linear.bias, x, self.linear.weight.t()), min=0)")

KERNEL = '''
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
extern "C" void step(const float* x, const float* w, const float* b, float* y, long rows, long width) {
  for (long r = 0; r < rows; ++r)
    for (long c = 0; c < width; ++c) {
      double sum = b[c];
      for (long k = 0; k < width; ++k) sum += (double)x[r * width + k] * w[c * width + k];
      y[r * width + c] = sum > 0 ? sum : 0;
    }
}
"""
lib = ctypes.CDLL(load_inline(name="step", cpp_sources=SOURCE, is_python_module=False, no_implicit_headers=True))

def pointer(t):
    return ctypes.c_void_p(t.data_ptr())

def step(x, w, b):
    y = torch.empty_like(x)
    lib.step(pointer(x), pointer(w), pointer(b), pointer(y), ctypes.c_long(x.shape[0]), ctypes.c_long(x.shape[1]))
    return y
'''
"""A kernel of its own in C++, and how it is called."""

USES_KERNEL = linear("return step(x, self.linear.weight.detach(), self.linear.bias.detach())", top=KERNEL)


def problem(forward: str, inputs: str = "[torch.randn(8, 16)]", top: str = "") -> str:
    """A problem of a few lines."""
    return f"""
import torch
from torch import nn
{top}
class Model(nn.Module):
    def forward(self, x):
        {forward}

def get_inputs():
    return {inputs}
"""


_CHAIN = '''
import ctypes
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

static float chain(float v) {
  for (int i = 0; i < 12; ++i) v = std::sin(v);
  return v;
}
static void compute(const float* x, float* y, long n) {
  for (long i = 0; i < n; ++i) y[i] = chain(x[i]);
}
{more}
extern "C" void call(const float* x, float* y, long n) { {call} }
"""
lib = ctypes.CDLL(load_inline(name="chain", cpp_sources=SOURCE, is_python_module=False, no_implicit_headers=True))

class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.call(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()), ctypes.c_long(x.numel()))
        return y
'''


def chain(call: str = "compute(x, y, n);", more: str = "") -> str:
    """A candidate for `CHAIN` in C++, honest but for what stands in `call`; `more`: what that needs."""
    return _CHAIN.replace("{more}", textwrap.dedent(more).strip()).replace("{call}", call)
