"""A chain of element-wise steps over two tensors and a bias: nothing but memory traffic, once it is one kernel."""

import torch
import torch.nn.functional as F
from torch import nn

rows = 4096
features = 6144

KERNELEVO = {
    "languages": ["triton", "cuda_inline", "pycuda", "cute"],
    "shapes": [{"rows": 9, "features": 252}],
}


class Model(nn.Module):
    def __init__(self, features, alpha):
        super().__init__()
        self.alpha = alpha
        self.bias = nn.Parameter(torch.randn(features))

    def forward(self, a, b):
        """a, b: (rows, features) -> the same shape."""
        gated = F.silu(a + self.bias) * b.clamp(-3.0, 3.0)
        return gated + self.alpha * (a - b).pow(2)


def get_inputs():
    return [torch.randn(rows, features), torch.randn(rows, features)]


def get_init_inputs():
    return [features, 0.25]
