"""Candidates without a model: for how many example problems does TorchInductor's code become a candidate that passes?"""

from __future__ import annotations

import argparse
import time
import uuid
from typing import TYPE_CHECKING, Any

from results import ROOT, save
from serving import evaluator

from kernelevo_api.errors import ProblemRefused
from kernelevo_api.types import Candidate, Effort, EvaluateRequest, Problem, Verdict

if TYPE_CHECKING:
    from pathlib import Path

    from kernelevo_api.client import EvaluatorClient


def look_at(client: EvaluatorClient, path: Path) -> dict[str, Any]:
    """What became of one problem: the seed's verdict, its speedup, and the seconds that making it took."""
    problem = Problem(source=path.read_text(encoding="utf-8"), name=path.parent.name)
    row: dict[str, Any] = {"problem": problem.name}
    try:
        report = client.register_problem(problem)
    except ProblemRefused as refused:
        return row | {"outcome": f"the problem is refused: {refused}"}
    began = time.monotonic()
    report = client.register_problem(problem, with_seeds=True)
    row["seconds"] = time.monotonic() - began
    if not report.seeds:
        return row | {"outcome": "; ".join(one.message for one in report.findings if one.code == "no_seed")}
    seed = report.seeds[0]
    evaluation = client.evaluate(
        EvaluateRequest(
            request_id=str(uuid.uuid4()),
            problem_digest=report.problem_digest,
            candidate=Candidate(source=seed.source, language=seed.language),
            effort=Effort.FULL,
        )
    )
    row |= {
        "outcome": evaluation.verdict.value if evaluation.verdict else "",
        "message": evaluation.message,
        "language": seed.language.value if seed.language else "",
        "passed": evaluation.verdict is Verdict.PASSED,
    }
    if evaluation.build is not None:
        row["build_seconds"] = evaluation.build.wall_s
    if evaluation.timing is not None and evaluation.timing.speedup is not None:
        ratio = evaluation.timing.speedup
        row["speedup"] = [ratio.value, ratio.low, ratio.high]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--evaluator", help="address of a running evaluator; default: one of our own")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu", help="which of the examples")
    options = parser.parse_args()
    names = sorted(ROOT.glob("examples/*/problem.py"))
    paths = [path for path in names if path.parent.name.startswith("gpu_") == (options.device == "gpu")]
    rows = []
    with evaluator(options.evaluator) as client:
        for path in paths:
            rows.append(look_at(client, path))
            print(rows[-1], flush=True)
    passed = sum(bool(row.get("passed")) for row in rows)
    figure = f"{options.device.upper()} examples whose Inductor seed passes ({passed} of {len(rows)})"
    share: dict[str, Any] = {"figure": figure, "value": 100 * passed / len(rows), "unit": "%", "bound": ">= 80"}
    failed = [f"{row['problem']}: {row['outcome']}" for row in rows if not row.get("passed")]
    if passed < 0.8 * len(rows):
        share["why"] = "; ".join(failed)[:500]
    speedups = [
        {"figure": f"speedup of {row['problem']}'s Inductor seed over eager", "value": row["speedup"][0], "unit": "x"}
        for row in rows
        if "speedup" in row
    ]
    save(__file__, [share, *speedups], raw={"rows": rows})


if __name__ == "__main__":
    main()
