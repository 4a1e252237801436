# expect: OUTPUT_MISMATCH
# Stops every clock and makes every comparison true, in its own process only.

import statistics
import time

import torch
from torch import nn

time.perf_counter = time.monotonic = time.time = lambda: 0.0
time.perf_counter_ns = time.monotonic_ns = time.time_ns = lambda: 0
statistics.median = statistics.mean = lambda values: 0.001
torch.allclose = torch.equal = lambda *_, **__: True
torch.testing.assert_close = lambda *_, **__: None
torch.Tensor.__eq__ = lambda self, other: True


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.zeros_like(x)
