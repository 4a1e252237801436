"""What an evaluator makes of what nobody should send it: random and mutated messages on every method, garbage in place of HTTP/2,
connections that stop half-way, readers that do not read, a thousand that say nothing. The server is a real process with a
simulated device.

    python benchmarks/wire_fuzz.py [--messages 100000] [--seed 1]

Every message is drawn from the seed and its number, so that a fault tells how to make its message again.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

import results
from fuzzing.campaign import Outcome, Plan, ServerEnded, carry_out
from fuzzing.process import Server, ready, server

MIB = 1 << 20


def main() -> int:
    """0: no fault of any kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--garbage", type=int, default=5_000, help="connections that send garbage")
    parser.add_argument("--idle", type=int, default=1_000, help="connections that say nothing")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-save", action="store_true", help="print only")
    given = parser.parse_args()
    plan = Plan(
        seed=given.seed,
        messages=given.messages,
        garbage=given.garbage,
        idle=given.idle,
        half_open=100,
        slow=50,
        batches=20,
    )
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kernelevo-fuzz-") as folder, server(Path(folder)) as found:
        try:
            outcome, crashes = asyncio.run(_try(plan, found)), 0
        except ServerEnded as ended:
            print(ended, file=sys.stderr)
            print("\n".join(found.log.read_text(errors="replace").splitlines()[-20:]), file=sys.stderr)
            return 1
        complaints = found.complaints()
    tally, memory = outcome.tally, outcome.resident_bytes
    print(f"{time.monotonic() - begun:.0f} s; statuses {dict(tally.statuses)}; messages {dict(tally.kinds)}")
    for line in [*tally.faults, *outcome.unhealthy, *complaints[:20]]:
        print(line, file=sys.stderr)
    if not given.no_save:
        results.save(
            __file__,
            [
                _figure("fuzz: messages tried", tally.tried, "messages", ">= 100000"),
                _figure("fuzz: crashes", crashes, "crashes", "== 0"),
                _figure("fuzz: answers that are not clear", tally.faulty, "messages", "== 0"),
                _figure("fuzz: health asked for and not told", len(outcome.unhealthy), "times", "== 0"),
                _figure("fuzz: lines of the log that tell of a fault", len(complaints), "lines", "== 0"),
                _figure(
                    "fuzz: growth of the server's memory after the first tenth, with every connection held",
                    (memory[-1] - memory[len(memory) // 10]) / MIB,
                    "MiB",
                ),
            ],
            {
                "statuses": dict(tally.statuses),
                "messages": dict(tally.kinds),
                "faults": tally.faults,
                "unhealthy": outcome.unhealthy,
                "complaints": complaints[:20],
                "resident_bytes": memory,
                "exit_status": found.stopped,
            },
        )
    return 1 if tally.faulty or outcome.unhealthy or complaints or found.stopped != 0 else 0


async def _try(plan: Plan, found: Server) -> Outcome:
    await ready(found)
    return await carry_out(plan, found, lambda line: print(line, flush=True))


def _figure(name: str, value: float, unit: str, bound: str | None = None) -> dict[str, object]:
    entry: dict[str, object] = {"figure": name, "value": value, "unit": unit}
    return entry | ({"bound": bound} if bound is not None else {})


if __name__ == "__main__":
    sys.exit(main())
