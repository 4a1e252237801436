"""Evaluations a minute on one GPU, warm and with a fresh evaluator for each candidate, and what one costs beyond its work."""

from __future__ import annotations

import argparse
import os
import statistics
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from gpu_mix import Member, mix
from results import save
from serving import evaluator, kept, stage_seconds

from kernelevo_api.types import Candidate, Effort, EvaluateRequest, Evaluation, Language, Problem, Stage, Verdict

if TYPE_CHECKING:
    from kernelevo_api.client import EvaluatorClient


def evaluate(client: EvaluatorClient, digests: dict[str, str], member: Member) -> tuple[float, Evaluation]:
    """Seconds on the client's clock, and the evaluation."""
    began = time.monotonic()
    evaluation = client.evaluate(
        EvaluateRequest(
            request_id=str(uuid.uuid4()),
            problem_digest=digests[member.problem],
            candidate=Candidate(source=member.candidate, language=Language.TRITON),
            effort=Effort.FULL,
            fresh=True,
        )
    )
    return time.monotonic() - began, evaluation


def timed_seconds(evaluation: Evaluation) -> float:
    """Seconds of the calls of which the timing was made: a block of either side in each pair."""
    timing = evaluation.timing
    if timing is None:
        return 0.0
    calls = timing.calls_per_block
    return calls * (sum(timing.candidate_samples_us) + sum(timing.baseline_samples_us)) / 1e6


def row(seconds: float, evaluation: Evaluation) -> dict[str, Any]:
    """What is kept of an evaluation, told at once."""
    timing, stages = evaluation.timing, stage_seconds(evaluation)
    spent = ", ".join(f"{stage} {one:.2f}" for stage, one in stages.items())
    print(f"{evaluation.verdict.value}: {seconds:.2f} s ({spent}), {evaluation.message}", flush=True)
    return kept(evaluation) | {
        "seconds": seconds,
        "stages": stages,
        "timed": timed_seconds(evaluation),
        "pairs": len(timing.candidate_samples_us) if timing else 0,
    }


def register(client: EvaluatorClient, members: list[Member]) -> dict[str, str]:
    """Digests by problem."""
    return {
        source: client.register_problem(Problem(source=source)).problem_digest
        for source in dict.fromkeys(member.problem for member in members)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=50, help="candidates in the mix")
    parser.add_argument("--in-flight", type=int, default=3, help="evaluations under way at once")
    parser.add_argument("--alone", type=int, default=8, help="evaluations one after another, for the overhead")
    parser.add_argument("--fresh", type=int, default=4, help="evaluations that get an evaluator of their own each")
    options = parser.parse_args()
    os.environ.setdefault("KERNELEVO_EVALUATOR_DEVICE", "cuda")
    raw: dict[str, Any] = {}
    with evaluator(None) as client:
        members = mix(options.count, uuid.uuid4().hex)
        # In order of problems: a search sends candidates for one problem at a time.
        members.sort(key=lambda member: member.name)
        digests = register(client, members)
        for member in mix(4, "warm-up"):
            evaluate(client, digests, member)
        raw["alone"] = [row(*evaluate(client, digests, member)) for member in mix(options.alone, uuid.uuid4().hex)]
        time.sleep(5)
        began = time.monotonic()
        with ThreadPoolExecutor(options.in_flight) as pool:
            raw["mix"] = [row(*one) for one in pool.map(lambda member: evaluate(client, digests, member), members)]
        rate = 60 * options.count / (time.monotonic() - began)
    fresh = []
    for member in mix(options.fresh, uuid.uuid4().hex):
        began = time.monotonic()
        with evaluator(None) as client:
            one = row(*evaluate(client, register(client, [member]), member))
            fresh.append({**one, "whole": time.monotonic() - began})
    raw["fresh"] = fresh
    passed = Counter(one["verdict"] for one in raw["mix"])
    print(passed, flush=True)
    assert passed[Verdict.PASSED.value] == options.count, passed
    widths = [(one["speedup"][2] - one["speedup"][1]) / 2 / one["speedup"][0] for one in raw["mix"]]
    works = (Stage.BUILD.value, Stage.CHECK.value)
    overheads = [
        one["seconds"] - one["timed"] - sum(one["stages"].get(stage, 0.0) for stage in works) for one in raw["alone"]
    ]
    figures: list[dict[str, Any]] = [
        {
            "figure": "evaluations per minute, one GPU, mix of 50 Triton candidates, effort full",
            "value": rate,
            "unit": "1/min",
            "bound": ">= 60",
        },
        {
            "figure": "the same mix: half width of the speedup's interval, median",
            "value": 100 * statistics.median(widths),
            "unit": "%",
            "bound": "<= 1",
        },
        {
            "figure": "overhead of an evaluation beyond build, checks and timed calls, median",
            "value": statistics.median(overheads),
            "unit": "s",
            "bound": "<= 0.3",
        },
    ]
    if fresh:
        fresh_rate = 60 * len(fresh) / sum(one["whole"] for one in fresh)
        figures += [
            {
                "figure": "evaluations per minute, a fresh evaluator for each candidate, same mix",
                "value": fresh_rate,
                "unit": "1/min",
            },
            {
                "figure": "warm evaluator against fresh ones, rate",
                "value": rate / fresh_rate,
                "unit": "x",
                "bound": ">= 5",
            },
        ]
    save(__file__, figures, raw=raw)


if __name__ == "__main__":
    main()
