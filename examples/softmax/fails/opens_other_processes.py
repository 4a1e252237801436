# expect: OUTPUT_MISMATCH|SANDBOX_VIOLATION
# Tries to trace its parent and to write the memory of every process it sees, then returns zeros.

import ctypes
import os

import torch
from torch import nn

PTRACE_SEIZE = 0x4206


def reach_out():
    libc = ctypes.CDLL(None, use_errno=True)
    for pid in [os.getppid(), *(int(name) for name in os.listdir("/proc") if name.isdigit())]:
        if pid == os.getpid():
            continue
        libc.ptrace(PTRACE_SEIZE, pid, None, None)
        try:
            open(f"/proc/{pid}/mem", "r+b").close()
        except OSError:
            pass


class ModelNew(nn.Module):
    def forward(self, x):
        reach_out()
        return torch.zeros_like(x)
