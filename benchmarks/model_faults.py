"""Whole searches against a model server on loopback that fails in every way: busy, down, without credit, resetting connections,
breaking off, silent, garbled, without usage, cut, declining, empty. Every other answer is a fault. Counted are paid replies that
the run's log lacks, searches that spent more than their budget, calls that were not settled once, and ledgers that are not what
the server charged.

    python benchmarks/model_faults.py [--searches 200] [--seed 1]

The server, the client and the search's engine are the real ones; the evaluator is a formula. In a quarter of the searches both
sides know what was paid, and the ledger must be the server's to the token; in the others, where replies are lost on the way or
come without their usage, it must be an upper bound.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from pathlib import Path
from typing import Literal

import results

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.searcher.faulty_model import Account, search

from kernelevo_searcher import model_calls

KINDS = (
    ("a whole reply is not in the log", "paid replies lost"),
    ("overspent", "searches that overspent"),
    ("the ledger has", "ledgers that are not what was charged"),
    ("m", "calls not settled once within their reservation"),
)


_WAYS: tuple[tuple[Literal["chat", "responses"], bool], ...] = (
    ("chat", False),
    ("chat", True),
    ("responses", False),
    ("responses", True),
)
"""Protocols, streamed or not."""


def main() -> int:
    """0: nothing was lost, overspent or miscounted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--searches", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-save", action="store_true", help="print only")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    # A campaign of pauses: they are waited for in hundredths of seconds.
    model_calls._FIRST_BACKOFF_S = 0.01
    begun = time.monotonic()
    accounts = [asyncio.run(_one(given.seed + number, number)) for number in range(given.searches)]
    wrong = [f"search {number}: {line}" for number, account in enumerate(accounts) for line in account.wrong]
    asked, faults = sum(account.asked for account in accounts), sum(account.faults for account in accounts)
    certain = [account for account in accounts if not account.uncertain]
    print(f"{time.monotonic() - begun:.0f} s; {asked} requests, {faults} faults; {len(certain)} searches to be exact")
    for line in wrong[:40]:
        print(line, file=sys.stderr)
    if not given.no_save:
        charged, spent = sum(account.charged for account in accounts), sum(account.spent for account in accounts)
        figures = [
            {"figure": "model faults: requests answered, every other with a fault", "value": asked, "unit": "requests"},
            {
                "figure": "model faults: tokens in the ledgers over tokens charged by the server",
                "value": spent / charged,
                "unit": "ratio",
                "bound": ">= 1",
            },
        ]
        for begins, name in KINDS:
            count = sum(line.startswith(begins) for account in accounts for line in account.wrong)
            figures.append({"figure": f"model faults: {name}", "value": count, "unit": "count", "bound": "== 0"})
        results.save(__file__, figures, {"wrong": wrong, "searches": [_raw(account) for account in accounts]})
    return 1 if wrong else 0


async def _one(seed: int, number: int) -> Account:
    api, stream = _WAYS[number % len(_WAYS)]
    certain = number // len(_WAYS) % 4 == 3
    with tempfile.TemporaryDirectory(prefix="kernelevo-faults-") as folder:
        return await search(Path(folder), seed, api=api, stream=stream, certain=certain, budget=150_000)


def _raw(account: Account) -> dict[str, object]:
    return {"asked": account.asked, "faults": account.faults, "charged": account.charged, "spent": account.spent}


if __name__ == "__main__":
    sys.exit(main())
