# expect: NOT_THE_LANGUAGE
# effort: final
# A kernel of the asked language touches one element; torch's own softmax does the work.

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def touch(y):
    tl.store(y, tl.load(y) * 1.0)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.softmax(x, dim=-1)
        touch[(1,)](y)
        return y
