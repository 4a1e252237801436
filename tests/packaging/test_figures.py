"""The published figures are well formed, and what misses its bound says why."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENTRY = {
    "figure": "things per minute",
    "value": 71.2,
    "unit": "1/min",
    "machine": "a machine",
    "versions": {"python": "3.11"},
    "date": "2026-12-01",
    "program": "benchmarks/figures.py",
}


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "figures.py", "--results", folder], capture_output=True, text=True
    )


def figures(folder: Path, *entries: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    (folder / "some.json").write_text(json.dumps(entries))
    return run(folder)


def test_published_figures() -> None:
    done = run(ROOT / "benchmarks" / "results")
    assert done.returncode == 0, done.stderr
    assert "TO BE WRITTEN" not in done.stdout


def test_misses_come_first(tmp_path: Path) -> None:
    met = {**ENTRY, "bound": ">= 60"}
    missed = {**ENTRY, "figure": "others", "value": 9, "bound": ">= 10", "why": "the host is slow"}
    done = figures(tmp_path, met, ENTRY, missed)
    assert done.returncode == 0, done.stderr
    assert done.stdout.index("others") < done.stdout.index("things")
    assert "why: the host is slow" in done.stdout


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"bound": ">= 80"}, "does not say why"),
        ({"bound": "fast"}, "is no bound"),
        ({"value": "71"}, "wrong type"),
        ({"date": "yesterday"}, "no date"),
        ({"program": "benchmarks/none.py"}, "there is no benchmarks/none.py"),
        ({"colour": "red"}, "unknown key"),
    ],
)
def test_what_is_malformed(tmp_path: Path, change: dict[str, Any], complaint: str) -> None:
    done = figures(tmp_path, {**ENTRY, **change})
    assert done.returncode == 1
    assert complaint in done.stderr
