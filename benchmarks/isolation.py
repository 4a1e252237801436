"""Every attack of tests/attacks on every backend: what came of each, and docs/attacks.md.

python benchmarks/isolation.py                     # with the Docker engine at DOCKER_HOST, where there is one
sudo python benchmarks/isolation.py --own-engine   # with one of its own
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING, Any

from engines import engine
from results import ROOT, save

from kernelevo_sandbox import BACKENDS, SandboxUnavailable, open_sandbox

sys.path.insert(0, str(ROOT / "tests" / "attacks"))

from attack import Outcome, Result
from attack_table import table
from attacking import NotHere, run
from attacks import ATTACKS

if TYPE_CHECKING:
    from attack import Attack, BuildAttack

PAGE = ROOT / "docs" / "attacks.md"


async def attack(backend: str, attacks: list[Attack | BuildAttack]) -> dict[str, Outcome]:
    """Outcomes by name; an attack that cannot be tried here has none."""
    found = {}
    sandbox = open_sandbox(backend)
    try:
        for one in attacks:
            try:
                found[one.name] = await run(sandbox, one)
            except NotHere as reason:
                print(f"{backend}: {one.name}: {reason}")
    finally:
        await sandbox.close()
    return found


def figures(backend: str, found: dict[str, Outcome]) -> list[dict[str, Any]]:
    """Counts, with what was asked for."""
    if backend == "none":
        controls = {"figure": "controls tried, none", "value": len(found), "unit": "attacks", "bound": ">= 40"}
        failed = sum(not outcome.taken for outcome in found.values())
        return [
            controls,
            {"figure": "controls not seen to succeed, none", "value": failed, "unit": "attacks", "bound": "== 0"},
        ]
    builds = sum(outcome.verdict is not None for outcome in found.values())
    bad = sum(outcome.result is Result.NOT_CONTAINED for outcome in found.values())
    return [
        {"figure": f"attacks tried, {backend}", "value": len(found), "unit": "attacks", "bound": ">= 40"},
        {"figure": f"attacks not contained, {backend}", "value": bad, "unit": "attacks", "bound": "== 0"},
        {"figure": f"attacks on the build that got a verdict, {backend}", "value": builds, "unit": "attacks"},
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--own-engine", action="store_true", help="start a Docker engine for this, as root")
    options = parser.parse_args()
    found: dict[str, dict[str, Outcome]] = {}
    missing: dict[str, str] = {}
    with engine(options.own_engine):
        for backend in BACKENDS:
            attacks = [one for one in ATTACKS if backend != "none" or one.control]
            try:
                found[backend] = asyncio.run(attack(backend, attacks))
            except SandboxUnavailable as reason:
                missing[backend] = str(reason)
    save(
        __file__,
        [figure for backend, outcomes in found.items() for figure in figures(backend, outcomes)],
        {
            backend: {name: [outcome.shown, outcome.evidence] for name, outcome in outcomes.items()}
            for backend, outcomes in found.items()
        },
    )
    PAGE.write_text(table(found, missing), encoding="utf-8")
    for backend, outcomes in found.items():
        for name, outcome in outcomes.items():
            if (not outcome.taken) if backend == "none" else (outcome.result is Result.NOT_CONTAINED):
                print(f"{backend}: {name}: {outcome.evidence}")
    for backend, why in missing.items():
        print(f"{backend} was not tried: {why}")
    print(f"written to {PAGE}")


if __name__ == "__main__":
    main()
