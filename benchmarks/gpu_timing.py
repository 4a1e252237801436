"""How far a GPU timing can be trusted: spread over repeats, equal kernels against each other, and agreement with do_bench."""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import time
import uuid
from typing import TYPE_CHECKING, Any

from gpu_mix import candidate, problem
from results import save
from serving import evaluator, kept

from kernelevo_api.types import BaselineKind, Candidate, Effort, EvaluateRequest, Evaluation, Language, Problem, Verdict

if TYPE_CHECKING:
    from kernelevo_api.client import EvaluatorClient

_LARGE = {"rows": 8192, "columns": 4096}
_LAUNCH_BOUND = {"rows": 64, "columns": 1024}

_LOAD = """
import importlib.util, json, pathlib, sys, tempfile, torch
def loaded(part):
    path = pathlib.Path(tempfile.mkdtemp()) / "measured.py"
    path.write_text(part["candidate"])
    spec = importlib.util.spec_from_file_location("measured" + part["name"], path)
    module = importlib.util.module_from_spec(spec); spec.loader.exec_module(module)
    return module.ModelNew().cuda()
def inputs(part, count):
    return [torch.randn(part["rows"], part["columns"], device="cuda") for _ in range(count)]
parts = json.load(sys.stdin)
"""

# By do_bench as it is, with its own kernel that empties the cache and two events around every call; what it shows for a kernel
# that does nothing; and by replays of a graph, as the evaluator does.
_DO_BENCH = (
    _LOAD
    + """
import triton, triton.language as tl
from triton.testing import do_bench, do_bench_cudagraph
with torch.no_grad():
    for part in parts:
        model, (x,) = loaded(part), inputs(part, 1)
        once = lambda: model(x)
        us = [1000 * do_bench(once, warmup=50, rep=200, return_mode="median") for _ in range(3)]
        with torch.cuda.stream(torch.cuda.Stream()):
            graph = [1000 * do_bench_cudagraph(once, rep=100, return_mode="median") for _ in range(3)]
        one = torch.zeros(1, device="cuda")
        nothing = 1000 * do_bench(lambda: one.zero_(), warmup=50, rep=100, return_mode="median")
        print(json.dumps({"name": part["name"], "us": us, "graph_us": graph, "smallest_kernel_us": nothing}), flush=True)
"""
)

# Each call on inputs of its own: ncu replays nothing for one metric of one pass.
_NCU = (
    _LOAD
    + """
with torch.no_grad():
    for part in parts:
        model, several = loaded(part), inputs(part, 8)
        for x in several * 3:
            model(x)
torch.cuda.synchronize()
"""
)


def by_ncu(parts: list[dict[str, Any]]) -> dict[str, list[float]]:
    """`gpu__time_duration` of the candidates' kernels by Nsight Compute, us, by name; empty where it cannot be run."""
    found: dict[str, list[float]] = {}
    for part in parts:
        command = [
            "ncu",
            "--csv",
            "--clock-control",
            "none",
            "--metrics",
            "gpu__time_duration.sum",
            "--print-units",
            "base",
        ]
        command += ["--kernel-name", "kernel", sys.executable, "-c", _NCU]
        try:
            done = subprocess.run(
                command, input=json.dumps([part]), capture_output=True, text=True, check=True, timeout=120
            )
        except (OSError, subprocess.SubprocessError) as error:
            print("ncu:", error, getattr(error, "stdout", "")[-500:], flush=True)
            return {}
        lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
        rows = [row for row in csv.DictReader(lines) if row.get("Metric Name") == "gpu__time_duration.sum"]
        print("ncu:", sorted({row["Kernel Name"] for row in rows}), flush=True)
        # The first calls are those that compile, and meet cold memory.
        found[part["name"]] = [float(row["Metric Value"].replace(",", "")) / 1000 for row in rows][8:]
    return found


def sized(name: str, rows: int, columns: int) -> tuple[str, str]:
    """Problem and candidate of the mix at another size."""
    warps = 8 if columns > 1024 else 4
    return problem(name, rows, columns), candidate(name, rows_each=1, warps=warps, mark="timing", columns=columns)


def once(client: EvaluatorClient, digest: str, source: str, other: str | None = None) -> Evaluation:
    """One evaluation against eager, or against another candidate."""
    return client.evaluate(
        EvaluateRequest(
            request_id=str(uuid.uuid4()),
            problem_digest=digest,
            candidate=Candidate(source=source, language=Language.TRITON),
            baseline=BaselineKind.CANDIDATE if other else BaselineKind.EAGER,
            baseline_candidate=Candidate(source=other, language=Language.TRITON) if other else None,
            effort=Effort.FULL,
            fresh=True,
        )
    )


def spread(rows: list[dict[str, Any]]) -> float:
    """Largest deviation from the median speedup, in per cent."""
    values = [row["speedup"][0] for row in rows if row["speedup"]]
    middle = statistics.median(values)
    return 100 * max(abs(value / middle - 1) for value in values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20, help="evaluations of one kernel")
    parser.add_argument("--pairs", type=int, default=200, help="comparisons of equal kernels")
    parser.add_argument("--seconds", type=float, default=1e9, help="no new comparison is begun after this long")
    options = parser.parse_args()
    os.environ.setdefault("KERNELEVO_EVALUATOR_DEVICE", "cuda")
    began = time.monotonic()
    large = {name: sized(name, **_LARGE) for name in ("softmax", "rms_norm")}
    small = sized("softmax", **_LAUNCH_BOUND)
    raw: dict[str, Any] = {"repeats": {}, "pairs": []}
    with evaluator(None) as client:
        digest = {
            source: client.register_problem(Problem(source=source)).problem_digest
            for source in [text for text, _ in large.values()] + [small[0]]
        }
        for name, (text, source) in {**large, "launch_bound": small}.items():
            raw["repeats"][name] = [kept(once(client, digest[text], source)) for _ in range(options.repeats)]
            print(name, spread(raw["repeats"][name]), raw["repeats"][name][0], flush=True)
        texts = [large["softmax"], small, large["rms_norm"]]
        for number in range(options.pairs):
            if time.monotonic() - began > options.seconds:
                break
            text, source = texts[number % len(texts)]
            evaluation = once(client, digest[text], source, source + f"\n# {number}\n")
            raw["pairs"].append(kept(evaluation))
    parts = [{"name": name, "candidate": source, **_LARGE} for name, (_, source) in large.items()]
    done = subprocess.run(
        [sys.executable, "-c", _DO_BENCH], input=json.dumps(parts), capture_output=True, text=True, check=False
    )
    print(done.stderr[-500:], flush=True)
    raw["do_bench"] = [json.loads(line) for line in done.stdout.splitlines()]
    raw["ncu"] = by_ncu(parts)
    taken = [row for row in raw["pairs"] if row["verdict"] == Verdict.PASSED.value]
    outside = [row for row in taken if not row["speedup"][1] <= 1 <= row["speedup"][2]]
    figures: list[dict[str, Any]] = [
        {
            "figure": f"spread of the speedup over {options.repeats} repeats, {name} {_LARGE['rows']}x{_LARGE['columns']}",
            "value": spread(raw["repeats"][name]),
            "unit": "%",
            "bound": "<= 1.5",
        }
        for name in large
    ]
    figures.append(
        {
            "figure": f"spread of the speedup over {options.repeats} repeats, launch-bound softmax 64x1024",
            "value": spread(raw["repeats"]["launch_bound"]),
            "unit": "%",
            "bound": "<= 2",
        }
    )
    if taken:
        figures.append(
            {
                "figure": "equal kernels whose interval excludes 1.00",
                "value": 100 * len(outside) / len(taken),
                "unit": f"% of {len(taken)} pairs",
                "bound": "<= 5",
            }
        )
    for one in raw["do_bench"]:
        name = one["name"]
        ours = statistics.median(row["candidate_us"] for row in raw["repeats"][name] if row["candidate_us"])
        others = {"triton.testing.do_bench": one["us"], "triton.testing.do_bench_cudagraph": one["graph_us"]}
        if raw["ncu"].get(name):
            others["ncu's gpu__time_duration"] = raw["ncu"][name]
        figures += [
            {
                "figure": f"deviation from {other}, {name} {_LARGE['rows']}x{_LARGE['columns']}",
                "value": 100 * abs(ours / statistics.median(us) - 1),
                "unit": "%",
                "bound": "<= 3",
            }
            for other, us in others.items()
        ]
    save(__file__, figures, raw=raw)


if __name__ == "__main__":
    main()
