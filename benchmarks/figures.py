"""Print every published figure, misses first; fail where an entry is malformed or a miss is not explained."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from pathlib import Path
from typing import Any

from results import RESULTS, faults, meets

HEADINGS = ("", "figure", "value", "bound", "date", "program")


def load(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """All valid entries, and what is wrong with the others."""
    entries, wrong = [], []
    for path in sorted(folder.glob("*.json")):
        try:
            listed = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            wrong.append(f"{path.name}: not JSON: {error}")
            continue
        if not isinstance(listed, list):
            wrong.append(f"{path.name}: not a list")
            continue
        for number, entry in enumerate(listed):
            found = faults(entry)
            wrong += [f"{path.name}[{number}]: {fault}" for fault in found]
            if not found:
                entries.append(entry)
    return entries, wrong


def table(entries: list[dict[str, Any]]) -> str:
    """The entries as aligned text, misses first, each miss followed by its reason."""
    order = {False: 0, None: 1, True: 2}
    entries = sorted(entries, key=lambda entry: order[meets(entry)])
    marks = {False: "MISS", None: "", True: "met"}
    rows = [
        (
            marks[meets(entry)],
            entry["figure"],
            f"{entry['value']:.4g} {entry['unit']}",
            entry.get("bound", ""),
            entry["date"],
            entry["program"],
        )
        for entry in entries
    ]
    widths = [max(len(row[column]) for row in [HEADINGS, *rows]) for column in range(len(HEADINGS))]

    def line(row: tuple[str, ...]) -> str:
        return "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()

    lines = [line(HEADINGS), line(tuple("-" * width for width in widths))]
    for row, entry in zip(rows, entries, strict=True):
        lines.append(line(row))
        if row[0] == "MISS":
            lines.append(textwrap.indent(textwrap.fill(f"why: {entry['why']}", 100), "      "))
    return "\n".join(lines)


def main() -> int:
    """0: printed; 1: something is malformed or not explained."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the result files")
    entries, wrong = load(parser.parse_args().results)
    if entries:
        print(table(entries))
        missed = sum(meets(entry) is False for entry in entries)
        machines = sorted({entry["machine"] for entry in entries})
        print(f"\n{len(entries)} figures, {missed} below their bound. Measured on:")
        print("\n".join(f"  {name}" for name in machines))
    else:
        print("no figures yet: the programs in benchmarks/ write them to benchmarks/results/")
    for fault in wrong:
        print(f"malformed: {fault}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
