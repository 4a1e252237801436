"""What is looked at beside the outputs, on request: traces, counts, one call for a tool around the process, compiled kernels."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import torch

from kernelevo_evaluator.messages.runner import (
    MOST_KERNELS,
    CallAlone,
    CompiledKernel,
    CountOperations,
    Done,
    Kernels,
    TraceCalls,
)
from kernelevo_evaluator.runner.tracing import count_operations, trace
from kernelevo_evaluator.runner.values import flatten, unflatten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kernelevo_evaluator.messages.runner import DescribeKernels, Reply
    from kernelevo_evaluator.runner.rings import Ring


def observe(
    command: TraceCalls | CountOperations | CallAlone | DescribeKernels,
    call: Callable[..., Any],
    rings: Mapping[int, Ring],
    device: torch.device,
) -> Reply:
    """Carry out a command that looks at a model's call."""
    if isinstance(command, TraceCalls):
        return trace(call, rings[command.ring].arguments[command.slot], device, command.nonce)
    if isinstance(command, CountOperations):
        return count_operations(call, rings[command.ring].arguments[command.slot], command.nonce)
    if isinstance(command, CallAlone):
        _call_alone(call, rings[command.ring].arguments[command.slot], device)
        return Done(nonce=command.nonce)
    return Kernels(nonce=command.nonce, kernels=tuple(described(gc.get_objects())))


def _call_alone(call: Callable[..., Any], arguments: Sequence[Any], device: torch.device) -> None:
    """Of copies: a ring's buffers have room behind them, where a read beyond an input would not be seen."""
    tree, tensors = flatten(arguments)
    copies = unflatten(tree, [tensor.clone() for tensor in tensors])
    if device.type != "cuda":
        call(*copies)
        return
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    try:
        call(*copies)
        torch.cuda.synchronize()
    finally:
        torch.cuda.profiler.stop()


def described(objects: Iterable[Any]) -> list[CompiledKernel]:
    """Triton's kernels among these objects, by name; of a kernel that was never loaded the registers are not known."""
    found: dict[str, CompiledKernel] = {}
    for one in objects:
        # By its class' name: the module moved between Triton's versions.
        if type(one).__name__ != "CompiledKernel" or not type(one).__module__.startswith("triton."):
            continue
        try:
            kernel = _described(one)
        except (AttributeError, KeyError, TypeError, ValueError):
            continue  # of another version, or made up
        found[kernel.digest + kernel.name] = kernel
    return sorted(found.values(), key=lambda kernel: (kernel.name, kernel.digest))[:MOST_KERNELS]


def _described(kernel: Any) -> CompiledKernel:
    metadata = kernel.metadata
    registers, spilled = getattr(kernel, "n_regs", None), getattr(kernel, "n_spills", None)
    return CompiledKernel(
        name=f"{str(metadata.name)[:160]} (num_warps={int(metadata.num_warps)}, num_stages={int(metadata.num_stages)})",
        digest=str(kernel.hash)[:64],
        nbytes=len(kernel.kernel),
        registers=int(registers) if registers is not None else None,
        shared_memory_bytes=int(metadata.shared),
        # Triton counts words of local memory.
        spill_bytes=4 * int(spilled) if spilled is not None else None,
    )
