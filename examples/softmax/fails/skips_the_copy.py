# expect: OUTPUT_MISMATCH|RUNTIME_ERROR|CRASHED|SANDBOX_VIOLATION
# Replaces the copy into the output slot, so that only the first result is ever written.

import torch
from torch import nn

copied = {}
real_copy = torch.Tensor.copy_


def copy_once(self, source, *rest):
    return self if copied.setdefault(self.data_ptr(), len(copied)) > 2 else real_copy(self, source, *rest)


torch.Tensor.copy_ = copy_once


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.zeros_like(x) if len(copied) > 2 else torch.softmax(x, dim=-1)
