"""What a runner on a GPU does before its candidate comes: all that every candidate would otherwise wait for."""

from __future__ import annotations

import contextlib

import torch


def warm() -> None:
    """Open the device, load what the first kernels need, and start Triton where it is installed."""
    torch.cuda.init()
    first = torch.ones(16, device="cuda")
    # The first kernel of each kind loads its module.
    (first + 1).sum().item()
    from cuda.bindings import driver  # noqa: F401 - the first ring would wait for it

    with contextlib.suppress(ImportError):
        from kernelevo_evaluator.runner import first_kernel

        first_kernel.launch()
    torch.cuda.synchronize()
