"""Problems written for somebody's own code."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

from kernelevo_searcher.authoring import Wanted, write_problem
from kernelevo_searcher.inputs import BadInput

if TYPE_CHECKING:
    from pathlib import Path

MINE = """from __future__ import annotations
import math, torch
import unused_module
WIDTH = 64
torch.manual_seed(0)

class Config:
    width: int = WIDTH

class Norm(torch.nn.Module):
    def __init__(self, config, scale=1.0):
        super().__init__()

    def forward(self, x, *, mask):
        return helped(x) * mask

def helped(x):
    return math.pi * x

def batch():
    return torch.randn(8), torch.randn(8)

def add(x, y, *, scale):
    return (x + y) * scale

def pair(x, y):
    return x, y

VALUE = 3
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(MINE, encoding="utf-8")
    return path


def names(text: str) -> set[str]:
    return {one.name for one in ast.parse(text).body if isinstance(one, ast.ClassDef | ast.FunctionDef)}


def test_a_module_with_what_it_needs_and_no_more(mine: Path) -> None:
    text = write_problem(
        Wanted(mine, "Norm", "torch.randn(rows, WIDTH), mask=torch.ones(1)", "Config(), scale=2.0", {"rows": 4})
    )
    assert names(text) == {"Config", "Norm", "helped", "Model", "get_inputs", "get_init_inputs"}
    assert "unused_module" not in text and "manual_seed" not in text
    assert "super().__init__(Config(), scale=2.0)" in text and "super().forward(x, mask=mask)" in text
    assert "rows = 4" in text and "WIDTH = 64" in text


def test_functions_and_policy(mine: Path) -> None:
    text = write_problem(Wanted(mine, "add", "torch.randn(4), torch.randn(4), scale=2", policy={"math": "tf32"}))
    assert "return add(x, y, scale=scale)" in text and 'KERNELEVO = {"math": "tf32"}' in text
    assert "made = batch()" in write_problem(Wanted(mine, "pair", "batch"))


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (("none", "1"), "defines no none"),
        (("VALUE", "1"), "neither a function nor a class"),
        (("Norm.forward", "1"), "inside of something else"),
        (("add", "x, y"), "needs scale by keyword"),
        (("pair", "x"), "needs y too"),
        (("pair", "x, y, z"), "takes 2 positional"),
        (("pair", "x, ("), "cannot be read"),
        (("pair", None), "say what pair is called with"),
        (("pair", "x, y", "3"), "has no constructor"),
    ],
)
def test_what_cannot_be_made_a_problem_says_why(mine: Path, wanted: tuple[str, ...], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        write_problem(Wanted(mine, *wanted))


def test_code_beside_the_file_is_refused(mine: Path) -> None:
    (mine.parent / "beside.py").write_text("x = 1\n", encoding="utf-8")
    mine.write_text("from beside import x\ndef add(y):\n    return y + x\n", encoding="utf-8")
    with pytest.raises(BadInput, match="lies beside it"):
        write_problem(Wanted(mine, "add", "torch.randn(3)"))
