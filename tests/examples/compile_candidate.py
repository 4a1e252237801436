"""Compiles the kernels of one Triton candidate of a GPU example for Hopper, at the problem's own sizes; no device is needed.

    python compile_candidate.py examples/<name>/passes/<candidate>.py

The candidate's `forward` runs on tensors of the host that are never filled; each launch compiles instead of launching, with the
assembler that Triton brings. Prints one JSON object: for each kernel its registers, spilled bytes and shared memory.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import CudaDriver
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from kernelevo_api.types import Problem
from kernelevo_evaluator.problem import read_problem
from kernelevo_evaluator.runner.modules import import_source

ARCHITECTURE = 90


class NoDevice(CudaDriver):  # type: ignore[misc]
    """As much of a driver as compiling takes."""

    def __init__(self) -> None:
        pass

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", ARCHITECTURE, 32)


def main() -> None:
    path = Path(sys.argv[1])
    source = (path.parents[1] / "problem.py").read_text(encoding="utf-8")
    policy = read_problem(Problem(source=source), 1 << 20).policy
    dtype = getattr(torch, policy.dtype)
    driver.set_active(NoDevice())
    kernels: dict[str, Any] = {}
    launch = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = launch(self, *args, grid=grid, warmup=True, **options)
        kernels[f"{self.__name__}.{kernel.hash[:8]}"] = kernel
        return kernel

    JITFunction.run = compile_only
    # Sizes and dtypes without content: drawing hundreds of megabytes would take longer than the compiler.
    torch.randn = torch.rand = lambda *shape, **_: torch.empty(*shape)
    torch.randint = lambda low, high, shape, **_: torch.empty(shape, dtype=torch.int64)
    problem = import_source(source, "problem")
    candidate = import_source(path.read_text(encoding="utf-8"), "candidate")
    init = problem.get_init_inputs()
    with torch.no_grad():
        model = candidate.ModelNew(*init).to(dtype)
        if hasattr(model, "load_reference_state"):
            model.load_reference_state(problem.Model(*init).to(dtype).state_dict())
        model(*(t.to(dtype) if t.dtype.is_floating_point else t for t in problem.get_inputs()))
    print(json.dumps({name: resources(kernel) for name, kernel in kernels.items()}))


def resources(kernel: Any) -> dict[str, int]:
    """What the assembler says of a kernel."""
    assembler = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
    with tempfile.TemporaryDirectory() as folder:
        ptx = Path(folder) / "kernel.ptx"
        ptx.write_text(kernel.asm["ptx"])
        said = subprocess.run(
            [assembler, "-v", f"--gpu-name=sm_{ARCHITECTURE}a", ptx, "-o", "/dev/null"],
            capture_output=True,
            text=True,
            check=True,
        ).stderr
    registers, spilled = re.search(r"Used (\d+) registers", said), re.search(r"(\d+) bytes spill stores", said)
    assert registers
    assert spilled
    return {
        "registers": int(registers[1]),
        "spilled_bytes": int(spilled[1]),
        "shared_bytes": int(kernel.metadata.shared),
        "warps": int(kernel.metadata.num_warps),
    }


if __name__ == "__main__":
    main()
