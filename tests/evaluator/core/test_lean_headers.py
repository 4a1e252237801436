"""torch's headers made lean: what compiles with them does what it did, and what does not compiles with torch's own."""

from __future__ import annotations

import dataclasses
import importlib.util
import os

import pytest
import torch

from kernelevo_evaluator.lanes.quiet import Quiet
from kernelevo_evaluator.languages.builder import Builder
from kernelevo_evaluator.languages.cpp import cpp_recipe
from kernelevo_evaluator.languages.lean_headers import defines
from kernelevo_evaluator.messages.runner import BuildRequest
from kernelevo_sandbox import BubblewrapSandbox, SandboxUnavailable

pytestmark = pytest.mark.slow

TYPICAL = """
torch::Tensor typical(torch::Tensor x, double factor) {
  TORCH_CHECK(x.dim() == 2 && x.is_contiguous(), "not a matrix: ", x.sizes());
  auto options = torch::TensorOptions().dtype(x.dtype()).device(x.device()).requires_grad(true);
  auto y = torch::empty({x.size(0), x.size(1)}, options);
  auto zero = torch::zeros_like(x);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "typical", [&] {
    const auto* from = x.data_ptr<scalar_t>();
    auto* to = y.data_ptr<scalar_t>();
    for (int64_t i = 0; i < x.numel(); ++i) to[i] = from[i] * static_cast<scalar_t>(factor);
  });
  return y + zero + torch::full_like(x, 1.0) - at::ones({1}, x.options());
}
"""
FRONTEND = """
torch::Tensor frontend(torch::Tensor x) { return torch::nn::functional::softplus(x); }
"""


@pytest.fixture
async def builder(tmp_path):
    sandbox = BubblewrapSandbox()
    try:
        await sandbox.probe()
    except SandboxUnavailable as error:
        await sandbox.close()
        pytest.skip(f"no sandbox on this host: {error}")
    try:
        yield Builder(sandbox, Quiet(), tmp_path / "artefacts", 2, frozenset(os.sched_getaffinity(0)))
    finally:
        await sandbox.close()


def request(name, source):
    return BuildRequest(nonce=1, name=name, cpp_sources=(source,), functions={name: "a function"})


def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_a_typical_wrapper_needs_no_more(builder, monkeypatch):
    asked = request("typical", TYPICAL)
    recipe = cpp_recipe(asked)
    (unit,) = recipe.units
    lean = [part for part in unit.commands[0] if part == "lean"]
    assert lean
    # Without the second attempt: it is the lean one that succeeds.
    monkeypatch.setattr(
        "kernelevo_evaluator.languages.builder.cpp_recipe",
        lambda _: dataclasses.replace(recipe, units=(type(unit)(unit.name, unit.commands[:1]),)),
    )
    result = await builder.build(asked, 200, 3 << 30)
    assert result.path is not None, result.log_text
    function = load("typical", result.path).typical
    x = torch.randn(3, 5)
    y = function(x, 2.0)
    assert torch.equal(y.detach(), x * 2.0 + 0.0 + 1.0 - 1.0)
    assert y.requires_grad, "torch::empty keeps what the options say"
    with pytest.raises(RuntimeError, match=r"not a matrix: \[4\]"):
        function(torch.randn(4), 2.0)


async def test_a_source_that_needs_more_gets_all(builder):
    result = await builder.build(request("frontend", FRONTEND), 400, 4 << 30)
    assert result.path is not None, result.log_text
    x = torch.randn(7)
    assert torch.allclose(load("frontend", result.path).frontend(x), torch.nn.functional.softplus(x))
    assert not result.diagnostics, "the attempt's errors are nobody's concern"


def test_what_a_source_names_is_there_whole():
    assert defines("at::cuda::getCurrentCUDABlasHandle(); cublasSgemm(") == ["-DKERNELEVO_WHOLE_CUDA_CONTEXT"]
    assert defines("PYBIND11_MODULE(") == ["-DKERNELEVO_PYTHON"]
    assert defines("torch::empty_like(x)") == []
