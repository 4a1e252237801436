"""What the defences cost: fresh inputs, checked calls, lone calls and the look for drift, as a share of an evaluation's time."""

from __future__ import annotations

import argparse
import asyncio
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from results import RESULTS, ROOT, save

sys.path.insert(0, str(ROOT / "tests" / "cheats"))

from bench import LIMITS, bench, job_of
from case import Problem

from kernelevo_api.types import Effort, Language, Verdict
from kernelevo_evaluator.referee.spent import DEFENCES

_PART = re.compile(r"(?:: |, )([a-z ]+) (\d+\.\d+) s")
EXAMPLES = {"cpu": ("elementwise_chain", "layer_norm_gelu", "rms_norm", "softmax")}


def sources(device: str) -> list[tuple[str, Problem, str, Language]]:
    """Name, problem, candidate and language of what is evaluated."""
    if device == "gpu":
        from gpu_mix import mix

        return [(m.name, Problem(source=m.problem), m.candidate, Language.TRITON) for m in mix(4, "cost")]
    found = []
    for name in EXAMPLES[device]:
        folder = ROOT / "examples" / name
        problem = Problem(source=(folder / "problem.py").read_text(encoding="utf-8"))
        found.append(
            (name, problem, (folder / "passes" / "cpp_ctypes.py").read_text(encoding="utf-8"), Language.CPP_INLINE)
        )
    return found


async def measure(device: str, effort: Effort, repeats: int) -> list[dict[str, Any]]:
    """Seconds of each evaluation, in all and by purpose. The first of each is not counted: it builds."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        async with bench(device, Path(folder)) as judge:
            for name, problem, candidate, language in sources(device):
                for number in range(repeats + 1):
                    told: list[str] = []
                    job = await job_of(judge, problem, candidate, language=language, effort=effort, limits=LIMITS)
                    began = time.monotonic()
                    evaluation = await judge.executor.evaluate(job, lambda _, text, told=told: told.append(text))
                    total = time.monotonic() - began
                    purposes: dict[str, float] = {}
                    for text in told:
                        if text.startswith("timed:"):
                            for purpose, seconds in _PART.findall(text):
                                purposes[purpose] = purposes.get(purpose, 0.0) + float(seconds)
                    if number and evaluation.verdict in (Verdict.PASSED, Verdict.TIMING_DISPUTED):
                        rows.append({"problem": name, "effort": effort.value, "total": total, **purposes})
                        shares = {p: f"{100 * s / total:.1f} %" for p, s in purposes.items()}
                        print(name, effort.value, f"{total:.2f} s", shares, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--repeats", type=int, default=3, help="evaluations of each problem")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results")
    options = parser.parse_args()
    rows = asyncio.run(measure(options.device, Effort.FULL, options.repeats))
    share = statistics.median(sum(row.get(p, 0.0) for p in DEFENCES) / row["total"] for row in rows)
    place = {"cpu": "a processor", "gpu": "a GPU"}[options.device]
    figure = {
        "figure": f"defences, share of an evaluation's time, {place}",
        "value": 100 * share,
        "unit": "%",
        "bound": "<= 15",
    }
    save("benchmarks/defence_cost.py", [figure], rows, folder=options.results)


if __name__ == "__main__":
    main()
