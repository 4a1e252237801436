"""What the service costs where nothing has to be evaluated: how long fifty callers wait for evaluations that are stored already.

A few candidates are evaluated for real, on this host's processor. Then every caller asks for one of them under a new request id,
over its own connection, and the time until it holds the evaluation counts, the caller's own work with it. Twice: with callers
that think in between, as searches do, and with callers that ask again at once, where fifty requests are under way all the time.

    python benchmarks/service_overhead.py [--callers 50] [--simulated]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import results
from fuzzing.messages import CANDIDATE, PROBLEM
from server_process import SIMULATED, NotMeasured, Server, exit_status, server

from kernelevo_api.client import AsyncEvaluatorClient
from kernelevo_api.types import Candidate, EvaluateRequest, Problem, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

REAL: Mapping[str, object] = {"device": "cpu", "log_level": "warning"}
STORED = 3
"""Different candidates that are evaluated first."""
THINKING_S = 1.0
"""Mean time that a caller of the first kind thinks; drawn from the exponential distribution."""


async def main() -> int:
    """0: measured, and saved unless simulated; 2: not measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--callers", type=int, default=50)
    parser.add_argument("--calls", type=int, default=2500, help="of each kind of caller, all together")
    parser.add_argument("--simulated", action="store_true", help="with a device that makes verdicts up; saves nothing")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="kernelevo-overhead-") as folder,
        server(Path(folder), SIMULATED if options.simulated else REAL) as served,
    ):
        await served.ready()
        requests = await _evaluated(served)
        raw = {
            "thinking": await _ask(served, requests, options.callers, options.calls, THINKING_S),
            "at_once": await _ask(served, requests, options.callers, options.calls, 0.0),
        }
    figures: list[dict[str, Any]] = []
    for kind, words in (("thinking", f"who think for {THINKING_S:g} s"), ("at_once", "who ask again at once")):
        took = sorted(raw[kind]["ms"])
        name = f"a cached evaluation, {options.callers} callers {words}"
        median, slow = statistics.median(took), took[int(len(took) * 0.99)]
        print(f"{name}: median {median:.2f} ms, 99 % {slow:.2f} ms, {raw[kind]['per_s']:.0f}/s")
        figures += [
            {"figure": f"{name}: median", "value": round(median, 3), "unit": "ms", "bound": "<= 5"},
            {"figure": f"{name}: 99th percentile", "value": round(slow, 3), "unit": "ms", "bound": "<= 50"},
            {"figure": f"{name}: answered", "value": round(raw[kind]["per_s"], 1), "unit": "1/s"},
        ]
    if not options.simulated:
        results.save(__file__, figures, raw)
    return 0


async def _evaluated(served: Server) -> list[EvaluateRequest]:
    """Requests that the store can answer."""
    async with AsyncEvaluatorClient(served.address) as client:
        report = await client.register_problem(Problem(source=PROBLEM))
        asked = [
            EvaluateRequest(
                problem_digest=report.problem_digest, candidate=Candidate(source=f"{CANDIDATE}# {number}\n")
            )
            for number in range(STORED)
        ]
        for request in asked:
            verdict = Verdict.TIMING_DISPUTED
            while verdict is Verdict.TIMING_DISPUTED:  # a busy host's word, which is not stored for others
                evaluation = await client.evaluate(request)
                verdict = evaluation.verdict
            if verdict is not Verdict.PASSED:
                raise NotMeasured(f"a candidate that must pass got {verdict}: {evaluation.message}")
    return asked


async def _ask(
    served: Server, requests: list[EvaluateRequest], callers: int, calls: int, thinking_s: float
) -> dict[str, Any]:
    """What `callers` waited for so many calls: milliseconds of each, in the order they ended."""
    took: list[float] = []
    numbers = iter(range(calls))

    async def caller(name: int) -> None:
        rng = random.Random(name)
        async with AsyncEvaluatorClient(served.address, client_id=f"caller-{name}") as client:
            await client.wait_ready()
            await everyone.wait()
            for number in numbers:
                if thinking_s:
                    await asyncio.sleep(rng.expovariate(1 / thinking_s))
                plain = requests[number % len(requests)]
                request = EvaluateRequest(
                    request_id=str(uuid.uuid4()), problem_digest=plain.problem_digest, candidate=plain.candidate
                )
                began = time.perf_counter()
                evaluation = await client.evaluate(request)
                took.append((time.perf_counter() - began) * 1e3)
                assert evaluation.from_cache

    everyone = asyncio.Barrier(callers + 1)
    async with asyncio.TaskGroup() as group:
        for name in range(callers):
            group.create_task(caller(name))
        await everyone.wait()
        began = time.perf_counter()
    return {"per_s": calls / (time.perf_counter() - began), "ms": [round(one, 3) for one in took]}


if __name__ == "__main__":
    sys.exit(exit_status(lambda: asyncio.run(main())))
