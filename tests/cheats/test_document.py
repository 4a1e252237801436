"""docs/cheats.md is what the last results say."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from cheats import document  # noqa: E402
from table import CASES  # noqa: E402


def test_the_page_is_generated():
    assert (ROOT / "docs" / "cheats.md").read_text(encoding="utf-8") == document()


def test_its_first_line_holds_the_counts():
    first, _, rest = document().partition("\n")
    assert re.match(r"\d+ of \d+ cheats stopped, \d+ of \d+ honest twins passed on a processor", first)
    for case in CASES:
        assert f"| {case.entry} | {case.part} |" in rest
