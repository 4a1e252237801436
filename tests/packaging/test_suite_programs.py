"""The programs behind the suites' figures, on a small problem and on a record: verdicts and evidence, no seconds."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from types import ModuleType

    from conftest import ServedEvaluator

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

PROBLEM = """import torch
from torch import nn

rows = 64


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(500) + 0.5)

    def forward(self, x):
        return torch.relu(x * self.weight) + x * x - x / 3


def get_inputs():
    return [torch.randn(rows, 500)]
"""


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_suite_without_a_model_is_searched_and_its_winners_measured_again(
    tmp_path: Path, served_evaluator: ServedEvaluator
) -> None:
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "problem.py").write_text(PROBLEM, encoding="utf-8")
    (tmp_path / "list.txt").write_text("# One problem.\nsmall\n", encoding="utf-8")
    arguments = ["--suite", tmp_path / "list.txt", "--evaluations", "1", "--seconds", "160", "--no-save"]
    arguments += ["--folder", tmp_path / "suite", "--evaluator", served_evaluator.address]
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "suite.py", *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"NO_COLOR": "1"},
    )
    assert done.returncode == 0, done.stderr
    raw = json.loads((tmp_path / "suite" / "all.json").read_text())
    (row,) = raw["results"]["results"]
    assert row["evaluated"] == 1
    assert "passed" in row["verdicts"]
    # A host that is busy enough disputes timings, and nothing else happens to an honest kernel.
    assert row["verdicts"].keys() <= {"passed", "timing_disputed"}
    assert row["best"] or "timing_disputed" in row["verdicts"]
    if row["best"]:
        assert row["language"] == "cpp_inline"
        speedup = row["speedup_over"]["eager"]
        assert 0 < speedup["low"] <= speedup["value"] <= speedup["high"]
    assert f"| {row['name']} | {row['ending'].replace('_', ' ')} |" in done.stdout
    if row["ending"] == "faster":
        again = raw["again"][row["name"]]
        assert {one["verdict"] for one in again.values()} <= {"passed", "timing_disputed"}
        assert "eager" in again


@pytest.fixture
def kernelbench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("kernelbench")


def test_a_record_of_kernelbench_becomes_figures_and_a_table(kernelbench: Any, tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    about = {
        "levels": [1, 2],
        "sample": ["a", "b", "c", "d"],
        "seed": 0,
        "machine": "a machine",
        "versions": {"torch": "2"},
    }
    rows = [
        {"problem": "a", "state": "taken", "codes": [], "seed": "triton", "verdict": "passed", "why": ""},
        {"problem": "b", "state": "taken", "codes": [], "seed": "", "why": "no | kernel"},
        {"problem": "c", "state": "refused", "codes": ["constant_output"], "why": "does not vary"},
    ]
    lines = [json.dumps(one) for one in ({"about": about}, *rows)]
    record.write_text("\n".join([*lines, '{"problem": "d", "sta']), encoding="utf-8")
    found = kernelbench.read_record(record)
    assert found == (about, rows)
    values = [one["value"] for one in kernelbench.figures(*found)]
    assert values == [75.0, 50.0, 50.0]
    table = kernelbench.table(*found)
    assert "| taken, its seed passes | 1 |" in table
    assert "| b | taken, no seed | no \\| kernel |" in table
    assert "| c | refused: constant_output | does not vary |" in table
    assert "| d | not reached |  |" in table
