"""A found kernel as an operator of torch, and in the place of a definition in somebody's file. torch is real, on the CPU."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.searcher.stored_run import store_run
from typer.testing import CliRunner

from kernelevo_searcher.authoring import Wanted, write_problem
from kernelevo_searcher.cli import app

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch")

LAYERS = '''"""Layers of my own."""

import torch
from torch import nn

EPS = 1e-6


def scaled(x, weight):
    return x * weight


class Norm(nn.Module):
    """Root mean square."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)
        self.register_buffer("mask", torch.ones(width), persistent=False)

    def forward(self, x):
        return scaled(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * self.mask, self.weight)


def soft(x, temperature=1.0):
    return torch.softmax(x / temperature, -1), x.sum(-1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = Norm(8)  # a norm

    def forward(self, x):
        return soft(self.norm(x))
'''

NORM_KERNEL = """import torch
from torch import nn

CALLS = []


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x):
        CALLS.append(tuple(x.shape))
        return torch.nn.functional.rms_norm(x, x.shape[-1:], self.weight, 1e-6)
"""

SOFT_KERNEL = """import torch
from torch import nn

CALLS = []


class ModelNew(nn.Module):
    def forward(self, x):
        CALLS.append(tuple(x.shape))
        return torch.softmax(x, -1), x.sum(-1)
"""


@pytest.fixture
def layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "layers.py"
    path.write_text(LAYERS, encoding="utf-8")
    return path


def loaded(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def imported(*names: str) -> list[Any]:
    """Modules of the test's folder, as a program that begins now would see them."""
    importlib.invalidate_caches()
    for name in names:
        sys.modules.pop(name, None)
    return [importlib.import_module(name) for name in names]


def kernelevo(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


async def norm_run(layers: Path, kernel: str = NORM_KERNEL) -> Path:
    problem = write_problem(Wanted(layers, "Norm", "torch.randn(4, 8)", "8"))
    return await store_run(layers.parent / "run", problem, kernel, name="my norm")


async def soft_run(layers: Path) -> Path:
    problem = write_problem(Wanted(layers, "soft", "torch.randn(4, 8)"))
    return await store_run(layers.parent / "run", problem, SOFT_KERNEL, name="soft")


async def test_the_operator_computes_and_compiles_whole(layers: Path) -> None:
    run = await norm_run(layers)
    told = kernelevo("best", run, "--torch-library", "-o", "operator.py")
    assert told.startswith("operator.py: ")
    module = loaded(layers.parent / "operator.py", "norm_operator_test")
    operator, reference = module.ModelOperator(8), loaded(layers, "layers_test").Norm(8)
    operator.load_state_dict(reference.state_dict())
    assert list(operator.state_dict()) == ["weight"] and isinstance(operator, module.ModelNew)
    x = torch.randn(5, 8)
    with torch.no_grad():
        torch.testing.assert_close(operator(x), reference(x))
        assert module.CALLS == [(5, 8)]
        compiled = torch.compile(operator, fullgraph=True, backend="aot_eager")
        for rows in (5, 7, 9):
            x = torch.randn(rows, 8)
            torch.testing.assert_close(compiled(x), reference(x))
            assert module.CALLS[-1] == (rows, 8)
        # A copy has weights of its own.
        other = copy.deepcopy(operator)
        other.weight.zero_()
        assert not other(x).any() and operator(x).all()
    name = next(one for one in dir(torch.ops.kernelevo) if one.startswith("my_norm_"))
    state = [tensor.detach() for tensor in operator._own().values()]
    torch.library.opcheck(getattr(torch.ops.kernelevo, name).default, (operator._handle, [x], state))


async def test_where_gradients_are_wanted_the_reference_runs(layers: Path) -> None:
    run = await norm_run(layers)
    kernelevo("best", run, "--torch-library", "-o", "operator.py")
    module = loaded(layers.parent / "operator.py", "norm_gradients_test")
    operator, reference = module.ModelOperator(8), loaded(layers, "layers_test").Norm(8)
    operator.load_state_dict(reference.state_dict())
    x = torch.randn(5, 8)
    with pytest.warns(UserWarning, match="gradients are wanted"):
        operator(x).pow(2).sum().backward()
    reference(x).pow(2).sum().backward()
    torch.testing.assert_close(operator.weight.grad, reference.weight.grad)
    assert not module.CALLS


async def test_several_outputs_and_outputs_that_share_memory(layers: Path) -> None:
    await soft_run(layers)
    kernelevo("best", "run", "--torch-library", "-o", "operator.py")
    operator = loaded(layers.parent / "operator.py", "soft_operator_test").ModelOperator()
    x = torch.randn(3, 8)
    compiled = torch.compile(lambda x: operator(x)[0] + operator(x)[1][:, None], fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), torch.softmax(x, -1) + x.sum(-1, keepdim=True))
        assert type(operator(x)) is tuple


@pytest.mark.parametrize(
    ("kernel", "mutates", "said"),
    [
        (NORM_KERNEL + "\n    def load_reference_state(self, state): pass\n", False, "packs its weights"),
        (NORM_KERNEL + "\n_SPEC = 1\n", False, "defines _SPEC itself"),
        (NORM_KERNEL, True, "writes into its inputs"),
    ],
)
async def test_what_cannot_be_an_operator_says_why(layers: Path, kernel: str, mutates: bool, said: str) -> None:
    problem = write_problem(Wanted(layers, "Norm", "torch.randn(4, 8)", "8"))
    await store_run(layers.parent / "run", problem, kernel, mutates=mutates)
    assert said in kernelevo("best", "run", "--torch-library", code=2).replace("\n", " ")


async def test_a_class_replaced_in_its_file(layers: Path) -> None:
    run = await norm_run(layers)
    diff = kernelevo("apply", run, "layers.py")
    assert layers.read_text(encoding="utf-8") == LAYERS and not (layers.parent / "norm_kernel.py").exists()
    assert "+from norm_kernel import ModelOperator as Norm" in diff and "+# KernelEvo: Norm, " in diff
    # The diff is one that git takes, and does what --write does.
    subprocess.run(["git", "apply", "-"], input=diff, text=True, cwd=layers.parent, check=True)
    by_git = [layers.read_text(encoding="utf-8"), (layers.parent / "norm_kernel.py").read_text(encoding="utf-8")]
    layers.write_text(LAYERS, encoding="utf-8")
    (layers.parent / "norm_kernel.py").unlink()
    assert "written" in kernelevo("apply", run, "layers.py", "--write")
    assert by_git == [
        layers.read_text(encoding="utf-8"),
        (layers.parent / "norm_kernel.py").read_text(encoding="utf-8"),
    ]
    assert "replaced already" in kernelevo("apply", run, "layers.py", code=2)
    # What stood there still does, and whoever makes a Norm from now on gets the kernel.
    assert not [line for line in diff.splitlines() if line.startswith("-") and not line.startswith("---")]
    mine, kernel = imported("layers", "norm_kernel")
    net = mine.Net().eval()
    with torch.no_grad():
        net(torch.randn(4, 8))
    assert kernel.CALLS == [(4, 8)] and [*net.state_dict()] == ["norm.weight"]


async def test_a_function_replaced_in_its_file(layers: Path) -> None:
    run = await soft_run(layers)
    kernelevo("apply", run, "layers.py:soft", "--write")
    mine, kernel = imported("layers", "soft_kernel")
    x = torch.randn(4, 8)
    with torch.no_grad():
        torch.testing.assert_close(mine.soft(x)[0], torch.softmax(x, -1))
        assert len(kernel.CALLS) == 1
        torch.testing.assert_close(mine.soft(x, temperature=2.0)[0], torch.softmax(x / 2, -1))
        assert len(kernel.CALLS) == 1


@pytest.mark.parametrize(
    ("change", "place", "said"),
    [
        (("EPS = 1e-6", "EPS = 1e-5"), "layers.py", "is not what was searched"),
        (("x * weight", "weight * x"), "layers.py", "is not what was searched"),
        (("", ""), "layers.py:Gone", "defines no class or function Gone"),
        (("", ""), "layers.py:soft", "is a function"),
        (("", ""), "none.py", "cannot be read"),
        (("", ""), "layers.txt", "not a Python file"),
    ],
)
async def test_what_cannot_be_replaced_says_why(layers: Path, change: tuple[str, str], place: str, said: str) -> None:
    run = await norm_run(layers)
    layers.write_text(LAYERS.replace(*change), encoding="utf-8")
    assert said in kernelevo("apply", run, place, code=2).replace("\n", " ")


async def test_remarks_and_layout_may_have_changed_since_the_search(layers: Path) -> None:
    run = await norm_run(layers)
    layers.write_text(
        LAYERS.replace("x * weight", "(x *\n            weight)  # scaled").replace("\n", "\r\n"),
        encoding="utf-8",
        newline="",
    )
    kernelevo("apply", run, "layers.py", "--write")
    assert layers.read_bytes().count(b"\r\n") == layers.read_bytes().count(b"\n")


async def test_a_class_that_the_problem_makes_itself_is_not_replaced(layers: Path) -> None:
    problem = write_problem(Wanted(layers, "Norm", "torch.randn(4, 8)", "width=int('8')"))
    await store_run(layers.parent / "run", problem, NORM_KERNEL.replace("self, width", "self, width=8"))
    assert "with arguments of its own" in kernelevo("apply", "run", "layers.py", code=2).replace("\n", " ")
