"""Hostile evaluations in a row through a real service, hostile programs in a row on each backend, and what they leave behind.

    sudo python benchmarks/hostile_soak.py [--evaluations 500] [--programs 500] [--device cuda] [--own-engine]

Processes, mounts, control groups, descriptors, files, the service's memory and that of GPUs are counted before, and once
everything has ended.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from engines import engine
from results import ROOT, save
from server_process import SERVE, Server

from kernelevo_api.client import AsyncEvaluatorClient
from kernelevo_sandbox import SandboxUnavailable, open_sandbox
from kernelevo_sandbox.watchdog import descendants

sys.path.insert(0, str(ROOT / "tests" / "attacks"))

import evaluation_soak
import soak as program_soak

SETTINGS = {"log_level": "warning", "temporary_bytes": 64 << 20, "spare_runners": 2}
_MEMORY_BYTES = {"cpu": 1 << 30, "cuda": 6 << 30}
"""Bombs fill a gigabyte, not the host; with CUDA's libraries a runner needs more than that."""


async def evaluations(count: int, device: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Figures and raw data of hostile evaluations, on bubblewrap."""
    with tempfile.TemporaryDirectory(prefix="kernelevo-soak-") as folder:
        place = Path(folder)
        # Orphans of the service come to this supervisor, where they are counted.
        supervised = (sys.executable, str(ROOT / "tests" / "supervise.py"), str(place / "outlived"), *SERVE)
        settings = {**SETTINGS, "device": device, "memory_bytes": _MEMORY_BYTES[device]}
        served = Server(place, settings, command=supervised)
        served.start()
        try:
            await served.ready()
            server = descendants(served.process.pid)[0]
            async with AsyncEvaluatorClient(served.address, client_id="soak") as client:
                # A GPU's evaluator offers no C++ for a processor.
                soaked = await evaluation_soak.soak(client, server, count, builds=device == "cpu")
        finally:
            served.stop()
        outlived = (place / "outlived").read_text().splitlines()
    assert soaked.before is not None and soaked.after is not None
    name = f"soak of {count} hostile evaluations, bubblewrap" + (", with a GPU" if device == "cuda" else "")
    before, after = asdict(soaked.before), asdict(soaked.after)
    figures = [
        {"figure": f"{name}: not contained", "value": len(soaked.escaped), "unit": "evaluations", "bound": "== 0"},
        {
            "figure": f"{name}: without their verdict",
            "value": len(soaked.wrong),
            "unit": "evaluations",
            "bound": "== 0",
        },
        {"figure": f"{name}: kinds of things left behind", "value": len(soaked.left), "unit": "kinds", "bound": "== 0"},
        {
            "figure": f"{name}: processes that outlived the service",
            "value": len(outlived),
            "unit": "processes",
            "bound": "== 0",
        },
        {
            "figure": f"{name}: growth of the service's memory",
            "value": (after["memory_bytes"] - before["memory_bytes"]) / (1 << 20),
            "unit": "MiB",
        },
        {"figure": f"{name}: seconds for each", "value": soaked.seconds / count, "unit": "s"},
    ]
    if device == "cuda":
        grown = (after["device_memory_bytes"] - before["device_memory_bytes"]) / (1 << 20)
        figures.append({"figure": f"{name}: growth of device memory in use", "value": grown, "unit": "MiB"})
    raw = {
        "verdicts": dict(soaked.verdicts),
        "escaped": soaked.escaped,
        "wrong": soaked.wrong,
        "before": before,
        "after": after,
        "outlived": outlived,
        "seconds": soaked.seconds,
    }
    return figures, raw


async def programs(backend: str, count: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Figures and raw data of hostile programs."""
    sandbox = open_sandbox(backend)
    try:
        before, after, escaped = await program_soak.soak(sandbox, count)
    finally:
        await sandbox.close()
    name = f"soak of {count} hostile programs and builds, {backend}"
    lost = program_soak.left(before, after)
    return [
        {"figure": f"{name}: not contained", "value": len(escaped), "unit": "programs", "bound": "== 0"},
        {"figure": f"{name}: kinds of things left behind", "value": len(lost), "unit": "kinds", "bound": "== 0"},
    ], {"escaped": escaped, "before": asdict(before), "after": asdict(after)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--evaluations", type=int, default=500, help="hostile evaluations; 0: none")
    parser.add_argument("--programs", type=int, default=500, help="hostile programs on each isolating backend; 0: none")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="what the evaluations run on")
    parser.add_argument("--own-engine", action="store_true", help="start a Docker engine for this, as root")
    options = parser.parse_args()
    figures: list[dict[str, Any]] = []
    raw: dict[str, Any] = {}
    if options.evaluations:
        found, raw["evaluations"] = asyncio.run(evaluations(options.evaluations, options.device))
        figures += found
    if options.programs:
        with engine(options.own_engine):
            for backend in ("bubblewrap", "docker"):
                try:
                    found, raw[backend] = asyncio.run(programs(backend, options.programs))
                except SandboxUnavailable as reason:
                    print(f"{backend} was not tried: {reason}")
                    continue
                figures += found
    for name, one in raw.items():
        print(name, {key: value for key, value in one.items() if key in ("verdicts", "escaped", "wrong", "outlived")})
    save(__file__, figures, raw)


if __name__ == "__main__":
    main()
