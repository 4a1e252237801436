# expect: OUTPUT_MISMATCH
# Sets torch's own switch, so that the library multiplies in TF32; the epilogue is an honest kernel.

import torch
import triton
import triton.language as tl
from torch import nn

torch.backends.cuda.matmul.allow_tf32 = True


@triton.jit
def bias_relu(y, bias, count, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    v = tl.load(y + at, mask=inside, other=0.0) + tl.load(bias + at % N, mask=inside, other=0.0)
    tl.store(y + at, tl.maximum(v, 0.0), mask=inside)


class ModelNew(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.linear = nn.Linear(width, hidden)

    def forward(self, x):
        torch.backends.cuda.matmul.allow_tf32 = True
        y = x @ self.linear.weight.t()
        bias_relu[(triton.cdiv(y.numel(), 1024),)](y, self.linear.bias, y.numel(), y.shape[1], BLOCK=1024)
        return y
