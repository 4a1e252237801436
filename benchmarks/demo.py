"""The demo, several times: how long it takes, and what speedup it ends with. README.md quotes the first run."""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from results import ROOT, save

BEGIN, END = "<!-- demo output: begin, written by benchmarks/demo.py -->", "<!-- demo output: end -->"
LAST_LINE = re.compile(r"verified speedup: (?P<value>[\d.]+)x \[(?P<low>[\d.]+), (?P<high>[\d.]+)\] over eager")
EXAMPLE = ROOT / "examples" / "elementwise_chain"


def once(seed: int, evaluations: int) -> dict[str, Any]:
    """One run of the demo's command, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="kernelevo-demo-") as folder:
        command: list[str | Path] = [
            Path(sys.executable).parent / "kernelevo",
            "evolve",
            EXAMPLE / "problem.py",
            "--start",
            EXAMPLE / "start.py",
            "--evaluations",
            str(evaluations),
            "--seed",
            str(seed),
        ]
        began = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=os.environ | {"NO_COLOR": "1"})
        seconds = time.monotonic() - began
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    match = LAST_LINE.fullmatch(lines[-1].strip()) if lines else None
    if done.returncode or match is None:
        sys.exit(f"exit code {done.returncode}, seed {seed}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    speedup = {name: float(value) for name, value in match.groupdict().items()}
    print(f"seed {seed}: {seconds:.1f} s, {lines[-1].strip()}", flush=True)
    return {"seed": seed, "seconds": seconds, **speedup, "output": done.stdout.replace(sys.prefix, "…")}


def quote(run: dict[str, Any], path: Path = ROOT / "README.md") -> None:
    """Put a run's output between the README's marks."""
    before, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    assert after, f"{path} has lost its marks"
    cores = len(os.sched_getaffinity(0))
    told = (
        f"What `make demo` printed on a shared virtual machine of {cores} cores, in {run['seconds']:.0f} s "
        "(without a terminal; on one it is live):"
    )
    shown = "\n".join(line.rstrip() for line in run["output"].strip().splitlines())
    path.write_text(f"{before}{BEGIN}\n{told}\n\n```\n{shown}\n```\n{END}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="how many runs, each with a seed of its own, from 1")
    parser.add_argument("--evaluations", type=int, default=8, help="as the Makefile's EVALUATIONS")
    options = parser.parse_args()
    runs = [once(seed, options.evaluations) for seed in range(1, options.runs + 1)]
    quote(runs[0])
    times = [run["seconds"] for run in runs]
    where = f"{options.runs} runs of {options.evaluations} evaluations"
    save(
        __file__,
        [
            {
                "figure": f"demo, wall time when installed, median ({where})",
                "value": statistics.median(times),
                "unit": "s",
                "bound": "<= 120",
            },
            {
                "figure": f"demo, wall time when installed, longest ({where})",
                "value": max(times),
                "unit": "s",
                "bound": "<= 120",
            },
            {
                "figure": f"demo, verified speedup over eager, median ({where})",
                "value": statistics.median(run["value"] for run in runs),
                "unit": "x",
                "bound": ">= 1.5",
            },
            {
                "figure": f"demo, verified speedup over eager, lowest end of an interval ({where})",
                "value": min(run["low"] for run in runs),
                "unit": "x",
                "bound": ">= 1.5",
            },
        ],
        raw=runs,
    )


if __name__ == "__main__":
    main()
