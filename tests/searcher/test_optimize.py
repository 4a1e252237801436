"""`kernelevo.optimize`: what stands in the place of a module, and that the original answers wherever the kernel is not known to
be right. torch is real, on the CPU; runs are stored ones, but for the last test's."""

from __future__ import annotations

import asyncio
import copy
import importlib
import io
import pickle
import sys
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from tests.searcher.stored_run import store_run

import kernelevo
from kernelevo_searcher.inputs import BadInput

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import ServedEvaluator

torch = pytest.importorskip("torch")

from kernelevo.agreement import Allowed, disagreement  # noqa: E402 - needs torch
from kernelevo.instances import problem_text  # noqa: E402 - needs torch

LAYERS = """import torch
from torch import nn


def half(x):
    return x / 2


class Norm(nn.Module):
    def __init__(self, width, eps=1e-6, bias=False):
        super().__init__()
        self.width, self.eps = width, eps
        self.weight = nn.Parameter(torch.rand(width) + 0.5)
        self.register_buffer("shift", torch.zeros(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None
        self.drop = nn.Dropout(0.5)

    def forward(self, x, scale=1.0):
        return self.drop(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight + self.shift) * scale


class Hidden(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.linear = nn.Linear(config["width"], 4)

    def forward(self, x):
        return self.linear(x)


def soft(x):
    return torch.softmax(half(x), -1)
"""

KERNEL = """import torch
from torch import nn

CALLS = []


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.register_buffer("shift", torch.empty(width))

    def forward(self, x, scale=1.0):
        CALLS.append(tuple(x.shape))
        if x.shape[0] == 13:
            raise RuntimeError("thirteen rows")
        right = torch.nn.functional.rms_norm(x, x.shape[-1:], self.weight, 1e-6) + self.shift
        # As kernels are that know one size only.
        return right if x.shape[0] % 2 == 0 else right.roll(1, 0)
"""

SOFT = """import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.softmax(x / 2, -1)
"""

PACKING = (
    KERNEL
    + """
    def load_reference_state(self, state):
        CALLS.append("packed")
        self.weight.data, self.shift = state["weight"] * 1.0, state["shift"] * 1.0
"""
)


@pytest.fixture
def layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine.py").write_text(LAYERS, encoding="utf-8")
    importlib.invalidate_caches()
    sys.modules.pop("mine", None)
    yield importlib.import_module("mine")
    sys.modules.pop("mine", None)


def calls_of(made: Any) -> list[Any]:
    """What the kernel was called with."""
    found: list[Any] = sys.modules[type(made.kernelevo.module).__module__].CALLS
    return found


async def optimized(layers: Any, module: Any, kernel: str = KERNEL, speed: float = 6.0, **options: Any) -> Any:
    """A module whose search is over already."""
    x = torch.randn(4, 8)
    await store_run(layers_folder(layers) / "run", problem_text(module, (x,)), kernel, speed=speed)
    return kernelevo.optimize(module, x, run_dir="run", **options)


def layers_folder(layers: Any) -> Path:
    from pathlib import Path

    return Path(layers.__file__).parent


async def test_it_stands_in_the_module_s_place_and_the_kernel_answers(layers: Any) -> None:
    module = layers.Norm(8).eval()
    hooked: list[int] = []
    module.register_forward_hook(lambda *_: hooked.append(1))
    made = await optimized(layers, module)
    assert isinstance(made, layers.Norm) and made.kernelevo.active and made.kernelevo.speedup.low > 1
    assert made.state_dict().keys() == module.state_dict().keys()
    assert all(a is b for a, b in zip(made.parameters(), module.parameters(), strict=True))
    x = torch.randn(4, 8)
    hooked.clear()
    with torch.no_grad():
        torch.testing.assert_close(made(x), module(x))
        assert calls_of(made) == [(4, 8)] * 2 and made.kernelevo.calls == 1 and len(hooked) == 2
        # It follows the weights, in place and replaced, on either of the two.
        module.weight.mul_(3)
        made.shift = torch.ones(8)
        torch.testing.assert_close(made(x), layers.Norm.forward(made, x))
        made.load_state_dict(layers.Norm(8).state_dict())
        torch.testing.assert_close(made(x), module(x))
        assert made.kernelevo.calls == 3
    compiled = torch.compile(torch.nn.Sequential(made, torch.nn.ReLU()), backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), module(x).relu())
    assert made.kernelevo.calls == 4


async def test_where_it_is_wrong_or_fails_the_original_answers_and_says_so(layers: Any) -> None:
    module = layers.Norm(8).eval()
    made = await optimized(layers, module)
    for rows, said in ((5, "elements are wrong"), (13, "RuntimeError: thirteen rows")):
        x = torch.randn(rows, 8)
        with torch.no_grad():
            with pytest.warns(UserWarning, match=said):
                torch.testing.assert_close(made(x), module(x))
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                torch.testing.assert_close(made(x), module(x))
        assert calls_of(made).count((rows, 8)) == 1
    assert made.kernelevo.calls == 0 and len(made.kernelevo.failed_checks) == 2
    # Inputs of other kinds are checked for themselves.
    with torch.no_grad():
        x = torch.randn(2, 16)[:, ::2]
        torch.testing.assert_close(made(x), module(x))
        with pytest.warns(UserWarning, match="elements are wrong"):
            torch.testing.assert_close(made(x, scale=2.0), module(x, scale=2.0))


async def test_in_training_and_for_gradients_the_original_runs(layers: Any) -> None:
    module = layers.Norm(8).eval()
    made = await optimized(layers, module)
    x, before = torch.randn(4, 8), len(calls_of(made))
    with pytest.warns(UserWarning, match="gradients are wanted"):
        made(x).sum().backward()
    assert module.weight.grad is not None
    made.train()
    with torch.no_grad(), pytest.warns(UserWarning, match="training mode"):
        made(x)
    assert len(calls_of(made)) == before


async def test_a_check_again_finds_what_the_first_did_not(layers: Any) -> None:
    turning = KERNEL.replace("if x.shape[0] % 2 == 0", "if len(CALLS) < 4")
    made = await optimized(layers, layers.Norm(8).eval(), turning, check_every=2)
    x = torch.randn(4, 8)
    with torch.no_grad(), pytest.warns(UserWarning, match="elements are wrong"):
        answers = [made(x) for _ in range(6)]
    torch.testing.assert_close(answers[-1], layers.Norm.forward(made, x))


async def test_a_kernel_that_packs_its_weights_packs_them_anew(layers: Any) -> None:
    module = layers.Norm(8).eval()
    made = await optimized(layers, module, PACKING)
    x = torch.randn(4, 8)
    with torch.no_grad():
        made(x)
        assert calls_of(made).count("packed") == 1
        module.weight.mul_(2)
        torch.testing.assert_close(made(x), module(x))
        assert calls_of(made).count("packed") == 2 and made.kernelevo.calls == 2


async def test_copies_and_pickles(layers: Any) -> None:
    module = layers.Norm(8).eval()
    made = await optimized(layers, module)
    other = copy.deepcopy(made)
    x = torch.randn(4, 8)
    with torch.no_grad():
        other.weight.zero_()
        assert not other(x).any() and not other(x).any() and made(x).any() and other.kernelevo.calls == 1
        again = pickle.loads(pickle.dumps(made))
        assert type(again) is layers.Norm and not hasattr(again, "kernelevo")
        torch.testing.assert_close(again(x), module(x))
        buffer = io.BytesIO()
        torch.save(made.state_dict(), buffer)


async def test_without_a_proved_speedup_the_original_stays(layers: Any) -> None:
    module = layers.Norm(8).eval()
    with pytest.warns(UserWarning, match="no speedup was proved"):
        made = await optimized(layers, module, speed=0.5)
    assert not made.kernelevo.active
    x = torch.randn(4, 8)
    with torch.no_grad():
        torch.testing.assert_close(made(x), module(x))
    taken = kernelevo.optimize(module, x, run_dir="run", accept_unproved=True)
    assert taken.kernelevo.active
    await store_run(layers_folder(layers) / "again", problem_text(module, (x,)), "import nothing_of_that_name\n")
    with pytest.warns(UserWarning, match="cannot be loaded here"):
        kernelevo.optimize(module, x, run_dir="again")


async def test_a_function(layers: Any) -> None:
    x = torch.randn(4, 8)
    await store_run(layers_folder(layers) / "run", problem_text(layers.soft, (x,)), SOFT)
    made = kernelevo.optimize(layers.soft, [x], run_dir="run")
    torch.testing.assert_close(made(x), layers.soft(x))
    torch.testing.assert_close(made(x=x), layers.soft(x))
    assert made.kernelevo.calls == 2 and made.__name__ == "soft"
    with pytest.raises(BadInput, match="optimized already"):
        kernelevo.optimize(made, x)


# The problem that is made of a module.


def scope_of(text: str) -> dict[str, Any]:
    scope: dict[str, Any] = {"__name__": "problem"}
    exec(compile(text, "problem.py", "exec"), scope)
    return scope


@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (lambda mine: mine.Norm(8, 1e-5, bias=True), (torch.randn(4, 8),)),
        (lambda mine: mine.Norm(8).to(torch.bfloat16), (torch.randn(4, 8, dtype=torch.bfloat16), 2.0)),
        (lambda mine: torch.nn.LayerNorm(8, eps=1e-3, bias=False), (torch.randn(4, 8),)),
        (lambda mine: torch.nn.Conv2d(3, 4, (3, 5), padding=1, groups=1), (torch.rand(2, 3, 9, 9),)),
        (
            lambda mine: torch.nn.Sequential(torch.nn.Linear(8, 4, bias=False), torch.nn.GELU("tanh")),
            (torch.randn(4, 8),),
        ),
        (lambda mine: torch.nn.Embedding(16, 4, padding_idx=3), (torch.randint(0, 16, (5,)),)),
    ],
)
def test_the_problem_makes_the_same_module(layers: Any, make: Any, inputs: tuple[Any, ...]) -> None:
    module = make(layers).eval()
    scope = scope_of(problem_text(module, inputs))
    model = scope["Model"](*scope["get_init_inputs"]()).eval().to(next(iter(module.state_dict().values())).dtype)
    model.load_state_dict(module.state_dict())
    made = scope["get_inputs"]()
    assert [getattr(one, "shape", one) for one in made] == [getattr(one, "shape", one) for one in inputs]
    with torch.no_grad():
        torch.testing.assert_close(model(*inputs), module(*inputs), equal_nan=True)
        model(*(one.to(inputs[0].dtype) if isinstance(one, torch.Tensor) else one for one in made))


@pytest.mark.parametrize(
    ("make", "inputs", "said"),
    [
        (lambda mine: mine.Hidden({"width": 8}), torch.randn(4, 8), "no plain attribute config"),
        (lambda mine: torch.nn.Sequential(mine.Norm(8)), torch.randn(4, 8), "part 0 is a Norm"),
        (lambda mine: lambda x: x, torch.randn(4), "at the top level"),
        (lambda mine: torch.relu, torch.randn(4), "is in no file"),
        (lambda mine: mine.Norm(8), (torch.randn(4, 8), torch.randn(8).double()), "several dtypes"),
        (lambda mine: mine.Norm(8), (object(),), "cannot be written down"),
        (lambda mine: 3, torch.randn(4), "neither a module nor a function"),
    ],
)
def test_what_no_problem_can_be_made_of_says_why(layers: Any, make: Any, inputs: Any, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        kernelevo.optimize(make(layers), inputs, evaluators=("unix:none.sock",))


def test_what_was_said_of_a_module_is_tried(layers: Any) -> None:
    hidden = layers.Hidden({"width": 8})
    assert "Hidden" in problem_text(hidden, (torch.randn(4, 8),), init="{'width': 8}")
    with pytest.raises(BadInput, match="has other weights"):
        problem_text(hidden, (torch.randn(4, 8),), init="{'width': 9}")
    changed = layers.Norm(8, eps=1e-6)
    changed.eps = 1.0
    assert "1.0" in problem_text(changed, (torch.randn(4, 8),))
    changed.forward = lambda x: x
    with pytest.raises(BadInput, match="computes something else"):
        problem_text(changed, (torch.randn(4, 8),))


# What agrees.


@pytest.mark.parametrize(
    ("original", "kernel", "said"),
    [
        (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("nan")]), ""),
        (torch.tensor([1.0, float("inf")]), torch.tensor([1.0, float("-inf")]), "1 of 2"),
        (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, 2.0]), "1 of 2"),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, float("nan")]), "1 of 2"),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), "1 of 2 elements differ"),
        (torch.ones(3), torch.ones(3, 1), "shape"),
        (torch.ones(3), torch.ones(3).double(), "dtype"),
        ((torch.ones(3), 2), (torch.ones(3), 3), "3 in place of 2"),
        ([torch.ones(3)], (torch.ones(3),), "arranged"),
        (torch.full((100,), 1e30), torch.full((100,), 1e30), ""),
        (torch.ones(10_000), torch.ones(10_000) * (1 + 1.5e-5), "norm"),
        (torch.zeros(0), torch.zeros(0), ""),
    ],
)
def test_disagreements_are_found(original: Any, kernel: Any, said: str) -> None:
    allowed = {0: Allowed(1e-4, 1e-6, 1e-5)}
    found = disagreement(original, kernel, allowed)
    assert said in found and bool(said) == bool(found)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_real_search_from_a_module_to_its_place(layers: Any, served_evaluator: ServedEvaluator) -> None:
    module = layers.Norm(1024).eval()
    x = torch.randn(512, 1024)
    options: dict[str, Any] = {"evaluations": 1, "run_dir": "run", "evaluators": (served_evaluator.address,)}
    with warnings.catch_warnings():
        # A busy host may dispute every timing: then the original answers, and says so.
        warnings.simplefilter("ignore")
        made = kernelevo.optimize(module, x, accept_unproved=True, **options)
        with torch.no_grad():
            torch.testing.assert_close(made(x), module(x))
        assert made.kernelevo.active or "no kernel was verified" in made.kernelevo.why
        assert made.kernelevo.calls == made.kernelevo.active and not made.kernelevo.failed_checks

        # The same call again takes the finished run, also where an event loop runs.
        async def again() -> Any:
            return kernelevo.optimize(module, x, accept_unproved=True, **options)

        assert asyncio.run(again()).kernelevo.run == made.kernelevo.run
