"""What one evaluation costs: seconds at each effort and in each stage, and evaluations a minute."""

from __future__ import annotations

import argparse
import statistics
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from results import ROOT, save
from serving import evaluator, stage_seconds

from kernelevo_api.types import Candidate, Effort, EvaluateRequest, Problem, Verdict

if TYPE_CHECKING:
    from kernelevo_api.client import EvaluatorClient
    from kernelevo_api.types import Evaluation

EXAMPLE = ROOT / "examples" / "rms_norm"


def distinct(source: str) -> str:
    """The same kernel as other C++ text, so that neither its evaluation nor its build is stored already."""
    marker = 'SOURCE = r"""\n'
    assert marker in source
    return source.replace(marker, f"{marker}// {uuid.uuid4()}\n", 1)


def evaluate(client: EvaluatorClient, digest: str, source: str, effort: Effort) -> tuple[float, Evaluation]:
    """Seconds on the client's clock, and the evaluation: passed, or its timing disputed as happens on a restless host."""
    request = EvaluateRequest(
        request_id=str(uuid.uuid4()),
        problem_digest=digest,
        candidate=Candidate(source=source),
        effort=effort,
        fresh=True,
    )
    began = time.monotonic()
    evaluation = client.evaluate(request)
    seconds = time.monotonic() - began
    assert evaluation.verdict in {Verdict.PASSED, Verdict.TIMING_DISPUTED}, evaluation.message
    assert not evaluation.from_cache
    return seconds, evaluation


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--evaluator", help="address of a running evaluator; default: one of our own")
    parser.add_argument("--repeats", type=int, default=10, help="evaluations at each effort")
    parser.add_argument("--in-flight", type=int, default=3, help="evaluations under way at once, for the rate")
    options = parser.parse_args()
    kernel = (EXAMPLE / "passes" / "cpp_ctypes.py").read_text(encoding="utf-8")
    raw: dict[str, Any] = {}
    figures: list[dict[str, Any]] = []
    disputed = 0
    with evaluator(options.evaluator) as client:
        began = time.monotonic()
        report = client.register_problem(Problem(source=(EXAMPLE / "problem.py").read_text(encoding="utf-8")))
        raw["registration"] = time.monotonic() - began
        figures.append(
            {"figure": "registration of rms_norm: audit and baselines", "value": raw["registration"], "unit": "s"}
        )
        evaluate(client, report.problem_digest, distinct(kernel), Effort.SCREEN)
        for effort in (Effort.SCREEN, Effort.FULL, Effort.FINAL):
            runs = [evaluate(client, report.problem_digest, distinct(kernel), effort) for _ in range(options.repeats)]
            stages = [stage_seconds(evaluation) for _, evaluation in runs]
            raw[effort.value] = [
                {"seconds": seconds, "verdict": evaluation.verdict.value, "stages": stage}
                for (seconds, evaluation), stage in zip(runs, stages, strict=True)
            ]
            disputed += sum(evaluation.verdict is Verdict.TIMING_DISPUTED for _, evaluation in runs)
            name = f"one evaluation of rms_norm, cpp_inline, effort {effort.value}"
            median = statistics.median(seconds for seconds, _ in runs)
            figures.append({"figure": f"{name}, median of {options.repeats}", "value": median, "unit": "s"})
            for stage in sorted({stage for one in stages for stage in one}):
                value = statistics.median(one.get(stage, 0.0) for one in stages)
                figures.append({"figure": f"{name}, stage {stage}", "value": value, "unit": "s"})
        count = 4 * options.repeats
        began = time.monotonic()
        with ThreadPoolExecutor(options.in_flight) as pool:
            waiting = [
                pool.submit(evaluate, client, report.problem_digest, distinct(kernel), Effort.SCREEN)
                for _ in range(count)
            ]
            done = [one.result() for one in waiting]
            raw["rate"] = [{"seconds": seconds, "verdict": evaluation.verdict.value} for seconds, evaluation in done]
            disputed += sum(evaluation.verdict is Verdict.TIMING_DISPUTED for _, evaluation in done)
        minutes = (time.monotonic() - began) / 60
        figures.append(
            {
                "figure": f"evaluations per minute, rms_norm, effort screen, one CPU lane, {options.in_flight} in flight",
                "value": count / minutes,
                "unit": "1/min",
            }
        )
    figures.append(
        {
            "figure": f"timings disputed, of {3 * options.repeats + count} evaluations of one honest kernel",
            "value": disputed,
            "unit": "evaluations",
        }
    )
    save(__file__, figures, raw=raw)


if __name__ == "__main__":
    main()
