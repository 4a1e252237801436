"""How far a GPU timing can be trusted: spread over repeats, equal kernels against each other, and agreement with do_bench."""

from __future__ import annotations

import argparse
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

_DO_BENCH = """
import json, sys, torch, triton
space = {}
for part in json.load(sys.stdin):
    module = {"__name__": "measured"}
    import importlib.util, tempfile, pathlib
    path = pathlib.Path(tempfile.mkdtemp()) / "measured.py"
    path.write_text(part["candidate"])
    spec = importlib.util.spec_from_file_location("measured" + part["name"], path)
    loaded = importlib.util.module_from_spec(spec); spec.loader.exec_module(loaded)
    model = loaded.ModelNew().cuda()
    x = torch.randn(part["rows"], part["columns"], device="cuda")
    with torch.no_grad():
        us = [1000 * triton.testing.do_bench(lambda: model(x), warmup=50, rep=200, return_mode="median") for _ in range(3)]
    print(json.dumps({"name": part["name"], "us": us}), flush=True)
"""


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
        ours = statistics.median(row["candidate_us"] for row in raw["repeats"][one["name"]] if row["candidate_us"])
        figures.append(
            {
                "figure": f"deviation from triton.testing.do_bench, {one['name']} {_LARGE['rows']}x{_LARGE['columns']}",
                "value": 100 * abs(ours / statistics.median(one["us"]) - 1),
                "unit": "%",
                "bound": "<= 3",
            }
        )
    save(__file__, figures, raw=raw)


if __name__ == "__main__":
    main()
