"""How figures are kept: `benchmarks/results/<program>.json`, a list of entries, and raw data beside it.

An entry has `figure`, `value`, `unit`, `machine`, `versions`, `date` and `program`, and may have `bound`, `why` and `raw`.
`bound` is the target as it was asked, e.g. ">= 60"; an entry that misses it stays in, with a `why`.
"""

from __future__ import annotations

import gzip
import json
import math
import operator
import re
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import machine

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"

REQUIRED: dict[str, type | tuple[type, ...]] = {
    "figure": str,
    "value": (int, float),
    "unit": str,
    "machine": str,
    "versions": dict,
    "date": str,
    "program": str,
}
OPTIONAL: dict[str, type | tuple[type, ...]] = {"bound": str, "why": str, "raw": str}
_BOUND = re.compile(r"(?P<relation>>=|<=|>|<|==)\s*(?P<number>-?\d+(?:\.\d+)?)\b")
_RELATIONS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt, "==": operator.eq}


def meets(entry: dict[str, Any]) -> bool | None:
    """Whether an entry meets its bound; None where it has none."""
    bound = entry.get("bound")
    if bound is None:
        return None
    match = _BOUND.match(bound.strip())
    if match is None:
        raise ValueError(f"{bound!r} is no bound: write e.g. '>= 60'")
    return bool(_RELATIONS[match["relation"]](entry["value"], float(match["number"])))


def faults(entry: Any, root: Path = ROOT) -> list[str]:
    """What is wrong with an entry."""
    if not isinstance(entry, dict):
        return ["not an object"]
    found = [f"no {name!r}" for name in REQUIRED if name not in entry]
    for name, value in entry.items():
        kind = REQUIRED.get(name) or OPTIONAL.get(name)
        if kind is None:
            found.append(f"unknown key {name!r}")
        elif not isinstance(value, kind) or isinstance(value, bool):
            found.append(f"{name!r} has the wrong type")
    if found:
        return found
    if not math.isfinite(entry["value"]):
        found.append("the value is not finite")
    found += [f"{name!r} is empty" for name in ("figure", "unit", "machine", "versions") if not entry[name]]
    try:
        date.fromisoformat(entry["date"])
    except ValueError:
        found.append(f"{entry['date']!r} is no date")
    found += [
        f"there is no {entry[name]}"
        for name in ("program", "raw")
        if name in entry and not (root / entry[name]).exists()
    ]
    try:
        if meets(entry) is False and not entry.get("why"):
            found.append("misses its bound, and does not say why")
    except ValueError as error:
        found.append(str(error))
    return found


def save(
    program: str, figures: list[dict[str, Any]], raw: Any = None, *, sampled: str = "", folder: Path = RESULTS
) -> None:
    """Write the figures of one run of a program; figures of the same name are replaced, others stay.

    Args:
        program: path of the program's file.
        figures: `figure`, `value`, `unit`, and where there is one `bound`, of each. A `why` that stood with a miss is kept.
        raw: what they were computed from; kept compressed.
        sampled: by which rule the raw data was thinned, where it was.
    """
    name = Path(program).stem
    path = folder / f"{name}.json"
    common: dict[str, Any] = {
        "machine": machine.describe(),
        "versions": machine.versions(),
        "date": datetime.now(UTC).date().isoformat(),
        "program": f"benchmarks/{name}.py",
    }
    folder.mkdir(parents=True, exist_ok=True)
    if raw is not None:
        raw_path = folder / "raw" / f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}.json.gz"
        raw_path.parent.mkdir(exist_ok=True)
        with gzip.open(raw_path, "wt", encoding="utf-8") as file:
            json.dump({"sampled": sampled, "data": raw} if sampled else {"data": raw}, file)
        common["raw"] = str(raw_path.relative_to(ROOT)) if raw_path.is_relative_to(ROOT) else str(raw_path)
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    reasons = {entry["figure"]: entry["why"] for entry in before if "why" in entry}
    new = [{**figure, **common} for figure in figures]
    for entry in new:
        if meets(entry) is False:
            entry.setdefault("why", reasons.get(entry["figure"], "TO BE WRITTEN: why this misses its bound"))
    named = {entry["figure"] for entry in new}
    kept = [entry for entry in before if entry["figure"] not in named]
    path.write_text(json.dumps(kept + new, indent=2) + "\n", encoding="utf-8")
    for entry in new:
        verdict = {True: "met", False: "MISSED", None: ""}[meets(entry)]
        print(f"{entry['figure']}: {entry['value']:.4g} {entry['unit']} {entry.get('bound', '')} {verdict}".rstrip())
    print(f"written to {path}")
