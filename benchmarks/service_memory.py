"""Whether the server's memory grows with what it has done: over real evaluations on this processor, and out of the cache.

    python benchmarks/service_memory.py [--cached 5000] [--evaluated 500]

Its resident memory is read fifty times in each part, evenly. Growth is the mean of the last tenth of these over the value after
the first tenth. Runners, referees and builds are processes of their own and end with their evaluation.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import results
from fuzzing.messages import CANDIDATE, PROBLEM
from server_process import Server, server

from kernelevo_api.client import AsyncEvaluatorClient
from kernelevo_api.types import Candidate, Effort, EvaluateRequest, Problem, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

SETTINGS = {"log_level": "warning", "queue_capacity": 1024}
SAMPLES = 50
MIB = 1 << 20


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cached", type=int, default=5000)
    parser.add_argument("--evaluated", type=int, default=500)
    parser.add_argument("--device", choices=["cpu", "simulated"], default="cpu", help="simulated: saves nothing")
    options = parser.parse_args()
    settings = SETTINGS | {"device": options.device}
    with tempfile.TemporaryDirectory(prefix="kernelevo-memory-") as folder, server(Path(folder), settings) as served:
        raw = asyncio.run(_measure(served, options.cached, options.evaluated))
    figures = [
        {
            "figure": f"growth of the server's memory over {len(part['verdicts'])} {kind} evaluations, after the first tenth",
            "value": round(growth(part["resident_bytes"]) / MIB, 2),
            "unit": "MiB",
            "bound": "< 1",
        }
        for kind, part in raw.items()
    ]
    for figure, part in zip(figures, raw.values(), strict=True):
        print(f"{figure['figure']}: {figure['value']} MiB, {part['seconds']:.0f} s")
        part["verdicts"] = {one: part["verdicts"].count(one) for one in sorted(set(part["verdicts"]))}
    if options.device == "cpu":
        results.save(__file__, figures, raw)


def growth(resident_bytes: list[int]) -> float:
    """Bytes that the last tenth of the samples lies above the one after the first tenth, on average."""
    tenth = max(len(resident_bytes) // 10, 1)
    return statistics.fmean(resident_bytes[-tenth:]) - resident_bytes[tenth]


async def _measure(served: Server, cached: int, evaluated: int) -> dict[str, Any]:
    await served.ready()
    async with AsyncEvaluatorClient(served.address) as client:
        report = await client.register_problem(Problem(source=PROBLEM))

        def request(number: int) -> EvaluateRequest:
            return EvaluateRequest(
                problem_digest=report.problem_digest,
                candidate=Candidate(source=f"{CANDIDATE}# {number}\n"),
                effort=Effort.SCREEN,
            )

        # Four under way, so that the lane is never idle; of those that are stored, fifty.
        real = await _ask(served, client, (request(number) for number in range(evaluated)), evaluated, 4)
        stored = await _ask(served, client, (request(number % 20) for number in range(cached)), cached, 50)
    return {"real": real, "cached": stored}


async def _ask(
    served: Server, client: AsyncEvaluatorClient, requests: Iterable[EvaluateRequest], count: int, at_once: int
) -> dict[str, Any]:
    waiting, verdicts, held = iter(requests), [], []
    began = time.monotonic()

    async def ask() -> None:
        for request in waiting:
            evaluation = await client.evaluate(request)
            assert evaluation.verdict in (Verdict.PASSED, Verdict.TIMING_DISPUTED), evaluation.message
            verdicts.append(evaluation.verdict.value)
            if len(verdicts) * SAMPLES // count > len(held):
                held.append(served.resident_bytes() or 0)

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(ask())
    return {"seconds": time.monotonic() - began, "verdicts": verdicts, "resident_bytes": held}


if __name__ == "__main__":
    main()
