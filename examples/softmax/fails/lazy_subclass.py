# expect: WRONG_INTERFACE|OUTPUT_MISMATCH
# A tensor that would compute only when it is looked at.

import torch
from torch import nn


class Lazy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        plain = [torch.softmax(a.as_subclass(torch.Tensor), dim=-1) if isinstance(a, Lazy) else a for a in args]
        return func(*plain, **(kwargs or {}))


class ModelNew(nn.Module):
    def forward(self, x):
        return x.as_subclass(Lazy)
