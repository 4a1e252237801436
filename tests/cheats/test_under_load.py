"""On a host that is busy with other things, no cheat against the clock passes as faster."""

from __future__ import annotations

import subprocess
import sys

import pytest
from case import is_right
from table import of

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]

BUSY = 3
"""Programs that want a core all the time, on a host of a few."""
PARTS = (
    "a block's calls as one",
    "a block's calls as one, and noise where they are alone",
    "the reference slowed: thread count",
    "timers that go off while it is frozen",
)


@pytest.fixture(scope="module")
def load():
    busy = [subprocess.Popen([sys.executable, "-I", "-S", "-c", "while True: pass"]) for _ in range(BUSY)]
    yield
    for process in busy:
        process.kill()
        process.wait()


@pytest.mark.parametrize("case", [pytest.param(case, id=case.part) for case in of("cpu") if case.part in PARTS])
async def test_noise_is_no_speedup(cpu_bench, load, case):
    found = await cpu_bench.cheat(case)
    assert is_right(case, found), f"answers {found.answers}, where {case.right} would be right: {found.told}"


async def test_the_parts_are_there():
    assert {case.part for case in of("cpu")} >= set(PARTS)
