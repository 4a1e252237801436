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
from fuzzing.campaign import Outcome, Plan, carry_out
from fuzzing.suspects import described, offenders
from server_process import Server, exit_status, server

MIB = 1 << 20
LOG_LINES = 50
"""Lines of the log that are kept of a server that crashed."""


def main() -> int:
    """0: no fault of any kind; 1: faults; 2: not measured."""
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
        outcome = asyncio.run(_try(plan, found))
        complaints = found.complaints()
        last_lines = found.log.read_text(errors="replace").splitlines()[-LOG_LINES:]
    crash = _crash(given.seed, outcome, last_lines) if outcome.crash is not None else None
    tally, memory = outcome.tally, outcome.resident_bytes
    print(f"{time.monotonic() - begun:.0f} s; statuses {dict(tally.statuses)}; messages {dict(tally.kinds)}")
    for line in [*tally.faults, *outcome.unhealthy, *complaints[:20]]:
        print(line, file=sys.stderr)
    if not given.no_save:
        results.save(
            __file__,
            [
                _figure("fuzz: messages tried", tally.tried, "messages", ">= 100000"),
                _figure("fuzz: crashes", int(crash is not None), "crashes", "== 0"),
                _figure("fuzz: answers that are not clear", tally.faulty, "messages", "== 0"),
                _figure("fuzz: health asked for and not told", len(outcome.unhealthy), "times", "== 0"),
                _figure("fuzz: lines of the log that tell of a fault", len(complaints), "lines", "== 0"),
                *_growth(memory),
            ],
            {
                "statuses": dict(tally.statuses),
                "messages": dict(tally.kinds),
                "faults": tally.faults,
                "unhealthy": outcome.unhealthy,
                "complaints": complaints[:20],
                "resident_bytes": memory,
                "exit_status": found.stopped,
                "crash": crash,
            },
        )
    return 1 if crash or tally.faulty or outcome.unhealthy or complaints or found.stopped != 0 else 0


async def _try(plan: Plan, found: Server) -> Outcome:
    await found.ready()
    return await carry_out(plan, found, lambda line: print(line, flush=True))


def _crash(seed: int, outcome: Outcome, last_lines: list[str]) -> dict[str, object]:
    """What is known of a crash: who was being answered, and whose message ends a fresh server too."""
    print(f"the server ended with {outcome.crash} after {outcome.tally.tried} messages", file=sys.stderr)
    print("\n".join(last_lines), file=sys.stderr)
    found = asyncio.run(offenders(seed, outcome.tally.cut_off))
    print(
        f"of {outcome.tally.cut_off}, which it was answering, these end a server by themselves: {found}",
        file=sys.stderr,
    )
    return {
        "exit_status": outcome.crash,
        "offenders": [described(seed, number) for number in found],
        "suspects": [described(seed, number) for number in outcome.tally.cut_off if number not in found],
        "log": last_lines,
    }


def _growth(memory: list[int]) -> list[dict[str, object]]:
    """After the first tenth; nothing where the server did not live that long."""
    if len(memory) < 2:
        return []
    name = "fuzz: growth of the server's memory after the first tenth, with every connection held"
    return [_figure(name, (memory[-1] - memory[len(memory) // 10]) / MIB, "MiB")]


def _figure(name: str, value: float, unit: str, bound: str | None = None) -> dict[str, object]:
    entry: dict[str, object] = {"figure": name, "value": value, "unit": unit}
    return entry | ({"bound": bound} if bound is not None else {})


if __name__ == "__main__":
    sys.exit(exit_status(main))
