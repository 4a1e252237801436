"""Inductor's Triton kernels on a host without a GPU: `generate OUT` writes a seed of them, `run SEED` calls it.

Two processes: Triton looks at TRITON_INTERPRET once, when it is imported, and Inductor's heuristics want kernels to compile.
"""

import os
import sys
from pathlib import Path

PROBLEM = """
import torch
from torch import nn

GROUPS = 8

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x):
        y = torch.relu(x * self.weight)
        return y - y.sum(dim=-1, keepdim=True), y.transpose(0, 1).contiguous()

rows, width = 37, 300
KERNELEVO = {"shapes": [{"rows": 3, "width": 70}]}

def get_inputs():
    return [torch.randn(rows, width)]

def get_init_inputs():
    return [width]
"""
SIZES = ({"rows": 37, "width": 300}, {"rows": 3, "width": 70})


def generate(out: Path) -> None:
    """Both sizes, as a runner does it; a device is not asked for anything."""
    import torch
    import torch.utils._triton
    from torch._inductor import config

    from kernelevo_evaluator.runner import inductor
    from kernelevo_evaluator.runner.modules import import_source
    from kernelevo_evaluator.runner.seed_source import module_source

    torch.utils._triton.triton_hash_with_backend = lambda: "0" * 64
    problem = import_source(PROBLEM, "problem")
    made = []
    with torch.no_grad(), config.patch(cpu_backend="triton"):
        for sizes in SIZES:
            vars(problem).update(sizes)
            model = problem.Model(*problem.get_init_inputs())
            made.append(inductor.generate(model, problem.get_inputs()))
    out.write_text(module_source(PROBLEM, made, str(torch.__version__)))


def run(seed: Path) -> None:
    """Call it at both sizes, beside the reference."""
    os.environ["TRITON_INTERPRET"] = "1"
    import torch

    from kernelevo_evaluator.runner.modules import import_source

    problem = import_source(PROBLEM, "problem")
    candidate = import_source(seed.read_text(), "candidate")
    candidate.Model.forward = None  # what the generated code is for, it answers itself
    for sizes in SIZES:
        vars(problem).update(sizes)
        reference, model = (one(*problem.get_init_inputs()) for one in (problem.Model, candidate.ModelNew))
        model.load_state_dict(reference.state_dict())
        inputs = problem.get_inputs()
        with torch.no_grad():
            torch.testing.assert_close(model(*inputs), reference(*inputs))


if __name__ == "__main__":
    {"generate": generate, "run": run}[sys.argv[1]](Path(sys.argv[2]))
