# expect: TIMEOUT|CRASHED|OUTPUT_MISMATCH
# Leaves a process behind that has its own session and ignores signals. It must be gone afterwards.

import os
import signal
import time

import torch
from torch import nn

if os.fork() == 0:
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    time.sleep(600)
    os._exit(0)


class ModelNew(nn.Module):
    def __init__(self, features, limit):
        super().__init__()
        self.limit = limit
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x, gate, residual):
        return torch.zeros_like(x)
