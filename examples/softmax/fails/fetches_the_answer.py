# expect: OUTPUT_MISMATCH|RUNTIME_ERROR|SANDBOX_VIOLATION
# Asks another host for the answer. There is no network; what is left is zeros.

import socket

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        try:
            with socket.create_connection(("192.0.2.1", 80), timeout=0.5) as connection:
                connection.sendall(b"what is the softmax of this?")
        except OSError:
            pass
        return torch.zeros_like(x)
