"""Each cheat is stopped, and each honest twin passes."""

from __future__ import annotations

import pytest
from case import is_passed, is_right
from table import CASES, of

pytestmark = pytest.mark.asyncio(loop_scope="session")


def _cases(device, *, timed=None):
    return [
        pytest.param(case, id=case.name, marks=[pytest.mark.slow] if case.slow else [])
        for case in of(device)
        if timed in (None, case.timed)
    ]


async def _both(bench, case):
    found = await bench.cheat(case)
    assert is_right(case, found), f"answers {found.answers}, where {case.right} would be right: {found.told}"
    twin = await bench.twin(case)
    assert is_passed(case, twin), f"its honest twin got {twin.answers}: {twin.told}"


@pytest.mark.parametrize("case", _cases("cpu", timed=True))
async def test_by_the_clock_of_a_processor(cpu_bench, case):
    await _both(cpu_bench, case)


@pytest.mark.parametrize("case", _cases("cpu", timed=False))
async def test_on_a_processor(cpu_bench, case):
    await _both(cpu_bench, case)


@pytest.mark.gpu
@pytest.mark.parametrize("case", _cases("gpu"))
async def test_on_a_gpu(gpu_bench, case):
    await _both(gpu_bench, case)


async def test_every_entry_of_the_collection_has_cases():
    assert {case.entry for case in CASES} == set(range(1, 38))
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
