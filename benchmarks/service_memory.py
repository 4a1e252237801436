"""Whether the server's memory grows with what it has done: over real evaluations on this processor, and out of the cache.

    python benchmarks/service_memory.py [--cached 5000] [--evaluated 500]

The candidates are small ones of mixed verdicts, of which most end before anything is timed. The server's resident memory is read
fifty times in each part, evenly. Growth is the mean of the last tenth of these over the value after the first tenth. Runners,
referees and builds are processes of their own and end with their evaluation.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import results
from fuzzing.messages import PROBLEM
from load.audit import OF_THE_MOMENT
from load.candidates import MADE_UP, REAL, draw_source
from server_process import SIMULATED, NotMeasured, Server, exit_status, server

from kernelevo_api.client import AsyncEvaluatorClient
from kernelevo_api.types import Candidate, Effort, EvaluateRequest, Problem, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from load.candidates import Mix

SETTINGS = {"cpu": {"device": "cpu", "log_level": "warning"}, "simulated": SIMULATED}
SAMPLES = 50
MIXES = {"simulated": MADE_UP, "cpu": REAL}
MIB = 1 << 20


def main() -> int:
    """0: measured, and saved unless simulated; 2: not measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cached", type=int, default=5000)
    parser.add_argument("--evaluated", type=int, default=500)
    parser.add_argument("--device", choices=["cpu", "simulated"], default="cpu", help="simulated: saves nothing")
    parser.add_argument("--no-save", action="store_true", help="print only")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="kernelevo-memory-") as folder,
        server(Path(folder), SETTINGS[options.device]) as served,
    ):
        raw = asyncio.run(_measure(served, options.cached, options.evaluated, MIXES[options.device]))
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
    if options.device == "cpu" and not options.no_save:
        results.save(__file__, figures, raw)
    return 0


def growth(resident_bytes: list[int]) -> float:
    """Bytes that the last tenth of the samples lies above the one after the first tenth, on average."""
    tenth = max(len(resident_bytes) // 10, 1)
    return statistics.fmean(resident_bytes[-tenth:]) - resident_bytes[tenth]


async def _measure(served: Server, cached: int, evaluated: int, mix: Mix) -> dict[str, Any]:
    await served.ready()
    rng = random.Random(1)
    async with AsyncEvaluatorClient(served.address) as client:
        report = await client.register_problem(Problem(source=PROBLEM))

        def request(source: str) -> EvaluateRequest:
            return EvaluateRequest(
                problem_digest=report.problem_digest, candidate=Candidate(source=source), effort=Effort.SCREEN
            )

        drawn = [draw_source(rng, mix, str(number)) for number in range(evaluated)]
        # Four under way, so that the lane is never idle; of those that are stored, fifty.
        real = await _ask(served, client, [(verdict, request(source)) for verdict, source in drawn], 4)
        keep = [Verdict.OUTPUT_MISMATCH, *([Verdict.PASSED] if mix is MADE_UP else [])]
        known = [(verdict, request(source)) for verdict, source in drawn if verdict in keep][-20:]
        stored = await _ask(served, client, [known[number % len(known)] for number in range(cached)], 50)
    return {"real": real, "cached": stored}


async def _ask(
    served: Server, client: AsyncEvaluatorClient, asked: Sequence[tuple[Verdict, EvaluateRequest]], at_once: int
) -> dict[str, Any]:
    waiting, verdicts, held = iter(asked), [], []
    began = time.monotonic()

    async def ask() -> None:
        for deserved, request in waiting:
            evaluation = await client.evaluate(request)
            assert evaluation.verdict is not None
            if evaluation.verdict is not deserved and evaluation.verdict not in OF_THE_MOMENT:
                raise NotMeasured(
                    f"a candidate that deserves {deserved.value} got {evaluation.verdict.value}: {evaluation.message}"
                )
            verdicts.append(evaluation.verdict.value)
            if len(verdicts) * SAMPLES // len(asked) > len(held):
                resident = served.resident_bytes()
                if resident is None:
                    raise NotMeasured("the evaluator has ended")
                held.append(resident)
                if len(held) % (SAMPLES // 10) == 0:
                    print(
                        f"{len(verdicts)} of {len(asked)} after {time.monotonic() - began:.0f} s, {resident / MIB:.1f} MiB",
                        flush=True,
                    )

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(ask())
    return {"seconds": time.monotonic() - began, "verdicts": verdicts, "resident_bytes": held}


if __name__ == "__main__":
    sys.exit(exit_status(main))
