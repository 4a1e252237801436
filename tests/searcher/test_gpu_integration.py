"""A kernel in the place of a module on a GPU: searched without a model, called, exported as an operator and put beside a file."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import kernelevo

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch")

LAYERS = """import torch
from torch import nn


class Norm(nn.Module):
    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.width, self.eps = width, eps
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x):
        return torch.tanh(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight)
"""


def command(*arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "kernelevo_searcher", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | {"NO_COLOR": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.timeout(240)
def test_a_module_on_a_gpu_is_searched_replaced_exported_and_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "gpu_layers.py"
    file.write_text(LAYERS, encoding="utf-8")
    importlib.invalidate_caches()
    norm = importlib.import_module("gpu_layers").Norm(4096).cuda().eval()
    x, other = torch.randn(4096, 4096, device="cuda"), torch.randn(33, 4096, device="cuda")

    made = kernelevo.optimize(norm, (x,), evaluations=4, run_dir=tmp_path / "run", accept_unproved=True)
    assert made.kernelevo.active, made.kernelevo.why
    with torch.no_grad():
        torch.testing.assert_close(made(x), norm(x), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(made(other), norm(other), rtol=1e-4, atol=1e-5)
    assert not made.kernelevo.failed_checks
    # In the caller's own graph, as a server captures it.
    graph, still = torch.cuda.CUDAGraph(), x.clone()
    with torch.no_grad(), torch.cuda.graph(graph):
        answer = made(still)
    graph.replay()
    with torch.no_grad():
        torch.testing.assert_close(answer, norm(x), rtol=1e-4, atol=1e-5)

    command("best", "run", "--torch-library", "-o", "norm_operator.py")
    operator = importlib.import_module("norm_operator").ModelOperator(4096).cuda().eval()
    operator.load_state_dict(norm.state_dict())
    with torch.no_grad():
        compiled = torch.compile(operator, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x), norm(x), rtol=1e-4, atol=1e-5)

    assert "+" in command("apply", "run", f"{file}:Norm")
    command("apply", "run", f"{file}:Norm", "--write")
    sys.modules.pop("gpu_layers")
    applied = importlib.import_module("gpu_layers").Norm(4096).cuda().eval()
    applied.load_state_dict(norm.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(applied(x), norm(x), rtol=1e-4, atol=1e-5)
