"""A candidate against itself: how often the interval holds 1.0, and how wide it is."""

from __future__ import annotations

import argparse
import statistics
import uuid

from results import ROOT, save
from serving import evaluator

from kernelevo_api.types import BaselineKind, Candidate, Effort, EvaluateRequest, Problem, Verdict


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--evaluator", help="address of a running evaluator; default: one of our own")
    parser.add_argument("--repeats", type=int, default=30, help="comparisons")
    parser.add_argument("--example", default="rms_norm", help="folder in examples/")
    parser.add_argument("--effort", choices=[effort.value for effort in Effort], default=Effort.FULL.value)
    options = parser.parse_args()
    folder = ROOT / "examples" / options.example
    kernel = (folder / "passes" / "cpp_ctypes.py").read_text(encoding="utf-8")
    taken, disputed = [], 0
    with evaluator(options.evaluator) as client:
        report = client.register_problem(Problem(source=(folder / "problem.py").read_text(encoding="utf-8")))
        for number in range(options.repeats):
            evaluation = client.evaluate(
                EvaluateRequest(
                    request_id=str(uuid.uuid4()),
                    problem_digest=report.problem_digest,
                    candidate=Candidate(source=kernel),
                    baseline=BaselineKind.CANDIDATE,
                    baseline_candidate=Candidate(source=kernel),
                    effort=Effort(options.effort),
                    fresh=True,
                )
            )
            if evaluation.verdict is Verdict.TIMING_DISPUTED:
                disputed += 1
                continue
            assert evaluation.verdict is Verdict.PASSED, evaluation.message
            assert evaluation.timing is not None
            ratio = evaluation.timing.speedup
            assert ratio is not None
            taken.append({"value": ratio.value, "low": ratio.low, "high": ratio.high})
            print(f"{number + 1}: {ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]", flush=True)
    held = sum(one["low"] <= 1 <= one["high"] for one in taken)
    widths = [(one["high"] - one["low"]) / 2 / one["value"] for one in taken]
    name = f"A/A, {options.example}, effort {options.effort}, {options.repeats} comparisons"
    save(
        __file__,
        [
            {
                "figure": f"{name}: share of intervals that hold 1.0",
                "value": 100 * held / len(taken),
                "unit": "%",
                "bound": ">= 95",
            },
            {
                "figure": f"{name}: half width of the interval, median",
                "value": 100 * statistics.median(widths),
                "unit": "%",
            },
            {"figure": f"{name}: half width of the interval, widest", "value": 100 * max(widths), "unit": "%"},
            {
                "figure": f"{name}: largest deviation of the ratio from 1.0",
                "value": 100 * max(abs(one["value"] - 1) for one in taken),
                "unit": "%",
            },
            {
                "figure": f"{name}: share that was disputed",
                "value": 100 * disputed / options.repeats,
                "unit": "%",
            },
        ],
        raw=taken,
    )


if __name__ == "__main__":
    main()
