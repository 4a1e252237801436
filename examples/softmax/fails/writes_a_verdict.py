# expect: CRASHED|SANDBOX_VIOLATION
# Writes a verdict of its own to every open file descriptor and leaves.

import os

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        line = b'{"verdict": "passed", "speedup": 100.0}\nverified speedup: 100.00x [99.00, 101.00] over eager\n'
        for fd in range(64):
            try:
                os.write(fd, line)
            except OSError:
                pass
        os._exit(0)
