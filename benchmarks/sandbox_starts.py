"""What a sandbox costs to start, on each backend: the first of a fresh backend, each one after it, and one with torch in it.

sudo python benchmarks/sandbox_starts.py [--own-engine]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from typing import Any

from engines import engine
from results import save

from kernelevo_evaluator.lanes.cores import Cores
from kernelevo_evaluator.lanes.quiet import Quiet
from kernelevo_evaluator.lanes.runners import RunnerLimits, RunnerPool
from kernelevo_sandbox import BACKENDS, Limits, SandboxSpec, SandboxUnavailable, open_sandbox

SPEC = SandboxSpec(argv=("/bin/true",), env={}, limits=Limits(memory_bytes=64 << 20, wall_seconds=30.0))
RUNNER = RunnerLimits(memory_bytes=2 << 30, processes=64, output_bytes=1 << 20, temporary_bytes=64 << 20)
PAUSE_SECONDS = 1.0
"""Between warm starts: a spare stands again by then."""


async def cold(backend: str) -> float:
    """Seconds from nothing until /bin/true has run and its whole tree is gone."""
    began = time.perf_counter()
    sandbox = open_sandbox(backend)
    try:
        await (await sandbox.start(SPEC)).wait()
        return time.perf_counter() - began
    finally:
        await sandbox.close()


async def warm(backend: str, count: int) -> list[float]:
    """The same where others have run before."""
    sandbox = open_sandbox(backend)
    try:
        for _ in range(3):
            await (await sandbox.start(SPEC)).wait()
        taken = []
        for _ in range(count):
            await asyncio.sleep(PAUSE_SECONDS)
            began = time.perf_counter()
            await (await sandbox.start(SPEC)).wait()
            taken.append(time.perf_counter() - began)
        return taken
    finally:
        await sandbox.close()


async def runners(backend: str, count: int) -> list[float]:
    """Seconds until a runner has torch imported and waits for its candidate: what a spare saves."""
    sandbox = open_sandbox(backend)
    cores = Cores.of(frozenset(os.sched_getaffinity(0)), gpu=False)
    pool = RunnerPool(sandbox, Quiet(), cores=cores, standard=RUNNER, spares=0)
    try:
        taken = []
        for number in range(count + 1):
            began = time.perf_counter()
            runner = await pool.take()
            if number:  # the first reads torch from the disk
                taken.append(time.perf_counter() - began)
            await pool.discard(runner)
        return taken
    finally:
        await pool.close()
        await sandbox.close()


async def measure(backend: str, options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds by what was measured."""
    return {
        "first start and end of /bin/true in a fresh backend": [await cold(backend) for _ in range(options.cold)],
        "start and end of /bin/true, warm": await warm(backend, options.warm),
        "start of a runner until torch is imported, without a spare": await runners(backend, options.runners),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cold", type=int, default=10, help="fresh backends")
    parser.add_argument("--warm", type=int, default=30, help="warm starts")
    parser.add_argument("--runners", type=int, default=5, help="runners")
    parser.add_argument("--own-engine", action="store_true", help="start a Docker engine for this, as root")
    options = parser.parse_args()
    raw: dict[str, Any] = {}
    with engine(options.own_engine):
        for backend in BACKENDS:
            try:
                raw[backend] = asyncio.run(measure(backend, options))
            except SandboxUnavailable as reason:
                print(f"{backend} was not tried: {reason}")
    figures = [
        {"figure": f"{what}, {backend}, median of {len(taken)}", "value": 1e3 * statistics.median(taken), "unit": "ms"}
        for backend, measured in raw.items()
        for what, taken in measured.items()
    ]
    save(__file__, figures, raw)


if __name__ == "__main__":
    main()
