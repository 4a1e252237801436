"""What isolation costs and holds: a start on each backend, attacks that get out, and a soak of hostile programs."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from dataclasses import asdict
from typing import Any

from results import ROOT, save

from kernelevo_sandbox import Limits, SandboxSpec, SandboxUnavailable, open_sandbox

sys.path.insert(0, str(ROOT / "tests" / "attacks"))

from attack import Result
from attacking import run
from attacks import ATTACKS
from soak import left, soak

ISOLATING = ("bubblewrap", "docker")
SPEC = SandboxSpec(argv=("/bin/true",), env={}, limits=Limits(memory_bytes=64 << 20, wall_seconds=30.0))
PAUSE_SECONDS = 1.0
"""Between starts: a spare stands again by then."""


async def starts(name: str, count: int) -> list[float]:
    """Seconds from the request to start /bin/true until its whole tree is gone, warm."""
    sandbox = open_sandbox(name)
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


async def measure(options: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Figures and raw data."""
    figures: list[dict[str, Any]] = []
    raw: dict[str, Any] = {}
    for name in (*ISOLATING, "none"):
        try:
            raw[f"start {name}"] = taken = await starts(name, options.starts)
        except SandboxUnavailable as why:
            print(f"{name}: {why}")
            continue
        figures.append(
            {
                "figure": f"start and end of /bin/true in a warm sandbox, {name}, median of {options.starts}",
                "value": 1e3 * statistics.median(taken),
                "unit": "ms",
            }
        )
        if name not in ISOLATING:
            continue
        sandbox = open_sandbox(name)
        try:
            results = {attack.name: await run(sandbox, attack) for attack in ATTACKS}
            before, after, escaped = await soak(sandbox, options.soak)
        finally:
            await sandbox.close()
        bad = [key for key, (result, _) in results.items() if result is Result.NOT_CONTAINED]
        raw[f"attacks {name}"] = {key: [result.value, evidence] for key, (result, evidence) in results.items()}
        raw[f"soak {name}"] = {"before": asdict(before), "after": asdict(after), "escaped": escaped}
        lost = left(before, after)
        figures += [
            {"figure": f"attacks tried, {name}", "value": len(results), "unit": "attacks", "bound": ">= 40"},
            {"figure": f"attacks not contained, {name}", "value": len(bad), "unit": "attacks", "bound": "== 0"},
            {
                "figure": f"soak of {options.soak} hostile programs, {name}: not contained",
                "value": len(escaped),
                "unit": "programs",
                "bound": "== 0",
            },
            {
                "figure": f"soak of {options.soak} hostile programs, {name}: kinds of things left behind",
                "value": len(lost),
                "unit": "kinds",
                "bound": "== 0",
            },
        ]
    return figures, raw


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=30, help="starts of each backend")
    parser.add_argument("--soak", type=int, default=500, help="hostile programs in a row, on each isolating backend")
    figures, raw = asyncio.run(measure(parser.parse_args()))
    save(__file__, figures, raw)


if __name__ == "__main__":
    main()
