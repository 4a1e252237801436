"""Whether the service loses, doubles or mistakes anything: hundreds of evaluations asked for at once by twenty clients, of whom
some cancel, some go away and come back, some go away for good; the server is killed (SIGKILL) and started again in the middle.

    python benchmarks/service_load.py [--evaluations 500] [--clients 20] [--seed 1] [--device simulated]

A simulated device makes its verdicts up and takes a tenth of a second for each; everything else is the real service.
`--device cpu` judges for real, in real sandboxes, candidates of mixed verdicts of which most end before anything is timed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import results
from load.audit import examine
from load.campaign import carry_out
from load.candidates import MADE_UP, REAL
from load.requests import draw
from server_process import Server, exit_status, server

if TYPE_CHECKING:
    from load.audit import Faults
    from load.campaign import Course

GRACE_S = 10.0
SETTINGS = {
    "simulated": {"simulated_s": 0.1, "simulated_lanes": 2},
    "cpu": {},
}
MIXES = {"simulated": MADE_UP, "cpu": REAL}
WORDS = {"simulated": "on a simulated device", "cpu": "in real sandboxes on this processor"}


def main() -> int:
    """0: nothing lost, doubled or wrong; 1: something was; 2: not measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--evaluations", type=int, default=500)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", choices=list(SETTINGS), default="simulated")
    parser.add_argument("--within", type=float, default=10.0, help="seconds in which clients go away")
    parser.add_argument("--no-save", action="store_true", help="print only")
    options = parser.parse_args()
    settings = {
        "device": options.device,
        "grace_s": GRACE_S,
        "queue_capacity": 4096,
        "queue_capacity_per_client": 1024,
        "log_level": "warning",
        **SETTINGS[options.device],
    }
    with tempfile.TemporaryDirectory(prefix="kernelevo-load-") as folder, server(Path(folder), settings) as served:
        course, faults = asyncio.run(_load(served, options))
        complaints = served.complaints()
    print(
        f"{course.seconds:.0f} s; killed after {course.killed_after} answers; acted {dict(course.acted)}; "
        f"verdicts {dict(faults.verdicts)}"
    )
    for line in [*faults.lost, *faults.doubled, *faults.wrong, *complaints[:20]]:
        print(line, file=sys.stderr)
    if not options.no_save:
        name = f"{options.evaluations} evaluations {WORDS[options.device]} by {options.clients} clients, killed once"
        counts = {"lost": len(faults.lost), "doubled": len(faults.doubled), "wrong": len(faults.wrong)}
        figures: list[dict[str, Any]] = [
            {"figure": f"{name}: {what}", "value": count, "unit": "evaluations", "bound": "== 0"}
            for what, count in counts.items()
        ]
        results.save(__file__, figures, _raw(course, faults, complaints))
    return 1 if faults.lost or faults.doubled or faults.wrong else 0


async def _load(served: Server, options: argparse.Namespace) -> tuple[Course, Faults]:
    await served.ready()
    asked = draw(options.seed, options.evaluations, options.clients, options.within, MIXES[options.device])
    course = await carry_out(served, asked, kill=True, tell=lambda line: print(line, flush=True))
    return course, await examine(served.address, asked, course, 10 * GRACE_S)


def _raw(course: Course, faults: Faults, complaints: list[str]) -> dict[str, Any]:
    return {
        "seconds": course.seconds,
        "killed_after_answers": course.killed_after,
        "acted": dict(course.acted),
        "verdicts": dict(faults.verdicts),
        "of_the_moment": faults.disputed,
        "lost": faults.lost[:50],
        "doubled": faults.doubled[:50],
        "wrong": faults.wrong[:50],
        "log": complaints[:50],
    }


if __name__ == "__main__":
    sys.exit(exit_status(main))
