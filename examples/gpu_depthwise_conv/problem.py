"""A short causal convolution along time, for each channel by itself, followed by SiLU: as in front of a state-space layer."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 8
channels = 2048
length = 2048
taps = 4

KERNELEVO = {
    "languages": ["triton", "cuda_inline", "pycuda", "cute"],
    "shapes": [{"batch": 2, "channels": 5, "length": 1300}],
}


class Model(nn.Module):
    def __init__(self, channels, taps):
        super().__init__()
        self.taps = taps
        self.weight = nn.Parameter(torch.randn(channels, 1, taps) * 0.5)
        self.bias = nn.Parameter(torch.randn(channels) * 0.5)

    def forward(self, x):
        """x: (batch, channels, length) -> the same shape. A place sees itself and the `taps - 1` places before it."""
        x = F.pad(x, (self.taps - 1, 0))
        return F.silu(F.conv1d(x, self.weight, self.bias, groups=self.weight.shape[0]))


def get_inputs():
    return [torch.randn(batch, channels, length)]


def get_init_inputs():
    return [channels, taps]
