"""Every GPU example through an evaluator with a GPU: its verdict against the one due, its speedup over eager, its kernels.

Honest candidates first, then those that must fail. Each outcome is written as soon as it is there; what fails, hangs or is not
reached within the minutes given is said so, and the rest goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results import ROOT, save
from serving import evaluator, kept

from kernelevo_api.types import Candidate, Effort, EvaluateRequest, Problem

if TYPE_CHECKING:
    from kernelevo_api.client import EvaluatorClient
    from kernelevo_api.types import Evaluation

EXAMPLES = ROOT / "examples"


def due(path: Path) -> set[str]:
    """The verdicts that a candidate may get."""
    if path.parent.name == "passes":
        return {"passed"}
    first = path.read_text(encoding="utf-8").splitlines()[0]
    return {name.strip().lower() for name in first.removeprefix("# expect: ").split("|")}


def effort_of(path: Path) -> Effort:
    """How much is spent on a candidate: full, unless its second line asks for another effort."""
    second = path.read_text(encoding="utf-8").splitlines()[1]
    return Effort(second.removeprefix("# effort: ").strip()) if second.startswith("# effort: ") else Effort.FULL


def row(evaluation: Evaluation) -> dict[str, Any]:
    """What is kept of an evaluation."""
    build = evaluation.build
    return kept(evaluation) | {
        "build_s": build.wall_s if build else None,
        "kernels": [
            {"kernel": k.kernel, "registers": k.registers, "shared": k.shared_memory_bytes, "spills": k.spill_bytes}
            for artefact in (build.artefacts if build else ())
            for k in artefact.kernels
        ],
    }


def run(client: EvaluatorClient, paths: list[Path], minutes: float, seconds: float, out: Path) -> list[dict[str, Any]]:
    """Evaluate one after another; `out` gets a line of JSON for each."""
    end = time.monotonic() + 60 * minutes
    digests: dict[Path, str] = {}
    rows: list[dict[str, Any]] = []
    with out.open("a", encoding="utf-8") as file:
        for path in paths:
            began, problem = time.monotonic(), path.parents[1] / "problem.py"
            one: dict[str, Any] = {"candidate": str(path.relative_to(EXAMPLES)), "due": sorted(due(path))}
            left = min(seconds, end - began)
            if left <= 1:
                one["verdict"], one["message"] = "not reached", "the minutes given were used up"
            else:
                try:
                    if problem not in digests:
                        text = problem.read_text(encoding="utf-8")
                        registered = client.register_problem(Problem(source=text), timeout=min(120.0, end - began))
                        digests[problem] = registered.problem_digest
                        one["registration_s"] = time.monotonic() - began
                    began = time.monotonic()
                    request = EvaluateRequest(
                        request_id=str(uuid.uuid4()),
                        problem_digest=digests[problem],
                        candidate=Candidate(source=path.read_text(encoding="utf-8")),
                        effort=effort_of(path),
                    )
                    one |= row(client.evaluate(request, timeout=left))
                except Exception as error:  # whatever one candidate does, the others are measured
                    one["verdict"], one["message"] = type(error).__name__, str(error)[:2000]
            one["seconds"] = time.monotonic() - began
            one["as_due"] = one["verdict"] in one["due"]
            rows.append(one)
            file.write(json.dumps(one) + "\n")
            file.flush()
            speedup = f" {one['speedup'][0]:.2f}x" if one.get("speedup") else ""
            mark = "  " if one["as_due"] else "!!"
            print(f"{mark} {one['candidate']}: {one['verdict']}{speedup} {one['seconds']:.1f} s", flush=True)
            if not one["as_due"]:
                print(f"     {one['message'][:300]}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--evaluator", help="address of a running evaluator; default: one of our own")
    parser.add_argument("--minutes", type=float, default=5.0, help="for all of them")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each")
    parser.add_argument("--only", default="", help="part of the paths to take, e.g. passes or gpu_softmax")
    parser.add_argument(
        "--out", type=Path, default=Path("gpu_examples.jsonl"), help="one line of JSON for each, at once"
    )
    options = parser.parse_args()
    os.environ.setdefault("KERNELEVO_EVALUATOR_DEVICE", "cuda")
    paths = [*sorted(EXAMPLES.glob("gpu_*/passes/*.py")), *sorted(EXAMPLES.glob("gpu_*/fails/*.py"))]
    with evaluator(options.evaluator) as client:
        wanted = [path for path in paths if options.only in str(path)]
        rows = run(client, wanted, options.minutes, options.seconds, options.out)
    reached = [one for one in rows if one["verdict"] != "not reached"]
    faster = {one["candidate"].split("/")[0] for one in rows if one.get("speedup") and one["speedup"][1] > 1}
    figures: list[dict[str, Any]] = [
        {
            "figure": "GPU examples whose verdict was the one due",
            "value": 100 * sum(one["as_due"] for one in reached) / max(1, len(reached)),
            "unit": "%",
            "bound": ">= 100",
        },
        {"figure": "GPU example problems with a candidate faster than eager", "value": len(faster), "unit": "problems"},
    ]
    save(__file__, figures, raw=rows)


if __name__ == "__main__":
    main()
