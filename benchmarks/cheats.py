"""Every cheat of the collection and its honest twin through the real evaluator: what became of each, and docs/cheats.md."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import machine
from results import RESULTS, ROOT, save

sys.path.insert(0, str(ROOT / "tests" / "cheats"))

from bench import bench
from case import Case, Judged, is_passed, is_right
from table import of

PLACES = {"cpu": "a processor", "gpu": "a GPU"}


def raw_path(device: str, folder: Path) -> Path:
    """Where the raw results of a device lie."""
    return folder / "raw" / f"cheats-{device}.json"


def row(case: Case, found: Judged, twin: Judged) -> dict[str, Any]:
    """One case's result."""
    told_by = [answer for answer in case.right if answer.startswith("finding:") and answer in found.answers]
    return {
        "entry": case.entry,
        "part": case.part,
        "cheat": ", ".join([found.shown, *told_by]),
        "right": is_right(case, found),
        "told": found.told[:300].replace(sys.executable, "python"),
        "twin": twin.shown,
        "twin_right": is_passed(case, twin),
    }


async def judge(device: str, seconds: float, only: str) -> list[dict[str, Any]]:
    """All cases of a device in whose name `only` is found, as far as the time goes."""
    rows = []
    until = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        async with bench(device, Path(folder)) as judge_of:
            for case in of(device):
                if not re.search(only, case.name):
                    continue
                if time.monotonic() > until:
                    print(f"no time is left for {case.name} and what follows")
                    break
                try:
                    found, twin = await judge_of.cheat(case), await judge_of.twin(case)
                except Exception as error:  # one case that cannot be judged is a wrong answer, not the end
                    found = twin = Judged((f"not judged: {type(error).__name__}",), str(error))
                rows.append(row(case, found, twin))
                mark = "" if rows[-1]["right"] and rows[-1]["twin_right"] else "   WRONG"
                print(
                    f"{case.name}: {found.shown}; its twin: {twin.shown}{mark}  {found.told[:160] if mark else ''}",
                    flush=True,
                )
    return rows


def of_cases(rows: list[dict[str, Any]], cases: list[Case]) -> dict[tuple[int, str], dict[str, Any]]:
    """The last result of each case that there still is."""
    last = {(row["entry"], row["part"]): row for row in rows}
    return {key: last[key] for case in cases if (key := (case.entry, case.part)) in last}


def figures(device: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Counts, with what was asked for."""
    total = len(of(device))
    place = PLACES[device]
    raw = str(raw_path(device, RESULTS).relative_to(ROOT))
    return [
        {
            "figure": f"{what}, {place}",
            "value": sum(r[key] for r in rows),
            "unit": f"of {total}",
            "bound": f"== {total}",
            "raw": raw,
        }
        for what, key in (("cheats stopped", "right"), ("honest twins passed", "twin_right"))
    ]


def document(folder: Path = RESULTS) -> str:
    """docs/cheats.md, from the raw results that there are."""
    counts, lines = [], []
    for device, place in PLACES.items():
        path = raw_path(device, folder)
        data = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"rows": [], "machine": None}
        cases = of(device)
        rows = of_cases(data["rows"], cases)
        if rows:
            stopped, passed = (sum(r[key] for r in rows.values()) for key in ("right", "twin_right"))
            counts.append(
                f"{stopped} of {len(cases)} cheats stopped, {passed} of {len(cases)} honest twins passed on {place}"
            )
        else:
            counts.append(f"{len(cases)} more need {place} and have no results yet")
        lines += [f"## On {place}", "", *([f"Machine: {data['machine']}.", ""] if data["machine"] else [])]
        lines += ["| entry | way | answer | | honest twin | |", "| --- | --- | --- | --- | --- | --- |"]
        for case in cases:
            found = rows.get((case.entry, case.part))
            cells = (
                ("", "", "", "")
                if found is None
                else (found["cheat"], _mark(found["right"]), found["twin"], _mark(found["twin_right"]))
            )
            lines.append(f"| {case.entry} | {case.part} | {' | '.join(cells)} |")
        lines.append("")
    head = [
        "; ".join(counts) + ".",
        "",
        "# Cheats",
        "",
        "Ways in which generated kernels have fooled evaluators, each with code of our own, and beside each the honest code",
        "that looks most like it. Entries are kinds; a kind has several ways. A cheat is stopped where its answer is one that",
        "is right for it: a verdict, a time that is no gain (`passed` with a speedup below 1.5), or, where it is asked what of",
        "a processor's candidate does the work, a finding in the report. `python benchmarks/cheats.py --device cpu|gpu` judges",
        "all of them and writes this page.",
        "",
    ]
    return "\n".join([*head, *lines]).rstrip() + "\n"


def _mark(right: bool) -> str:
    return "right" if right else "**wrong**"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--device", choices=sorted(PLACES), help="what to judge on; without it only the page is written anew"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--seconds", type=float, default=1e9, help="no new case is begun after this long")
    parser.add_argument(
        "--only",
        default="",
        help="judge only cases in whose name this expression is found; the others keep their last results",
    )
    options = parser.parse_args()
    if options.device is not None:
        path = raw_path(options.device, options.results)
        kept = json.loads(path.read_text(encoding="utf-8"))["rows"] if options.only and path.exists() else []
        new = asyncio.run(judge(options.device, options.seconds, options.only))
        rows = list(of_cases(kept + new, of(options.device)).values())
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"machine": machine.describe(), "rows": rows}, indent=1) + "\n", encoding="utf-8")
        save("benchmarks/cheats.py", figures(options.device, rows), folder=options.results)
    page = ROOT / "docs" / "cheats.md"
    page.write_text(document(options.results), encoding="utf-8")
    print(page.read_text(encoding="utf-8").partition("\n")[0])


if __name__ == "__main__":
    main()
