# expect: TIMEOUT
# slow
# Never finishes a call, and takes no signal for an answer.

import signal

import torch
from torch import nn

for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)


class ModelNew(nn.Module):
    def __init__(self, features, limit):
        super().__init__()
        self.limit = limit
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x, gate, residual):
        while True:
            pass
