"""Clients that cancel, go away and come back, and a server that is killed: benchmarks/service_load.py in short."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from load.audit import examine
from load.campaign import carry_out
from load.candidates import MADE_UP
from load.requests import Fate, draw
from server_process import NOT_MEASURED, SIMULATED, NotMeasured, exit_status, server

from kernelevo_api.client import AsyncEvaluatorClient
from kernelevo_api.types import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from server_process import Server

pytestmark = pytest.mark.timeout(180)
SETTINGS = SIMULATED | {"simulated_s": 0.1, "simulated_lanes": 2, "grace_s": 5}


@pytest.fixture
def served() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="ke") as folder, server(Path(folder), SETTINGS) as one:
        yield one


async def test_forty_evaluations_and_a_kill_lose_double_and_mistake_nothing(served: Server) -> None:
    await served.ready()
    asked = draw(seed=3, count=40, clients=20, within_s=1.0, mix=MADE_UP)
    course = await carry_out(served, asked, kill=True)
    assert course.killed_after is not None
    assert 20 <= course.killed_after < 40
    assert course.errors == {}
    assert len(course.acted) > 1
    faults = await examine(served.address, asked, course, 60.0)
    assert (faults.lost, faults.doubled, faults.wrong) == ([], [], [])
    assert {"passed", "output_mismatch"} <= faults.verdicts.keys()
    assert served.complaints() == []

    # What would be a fault is seen as one.
    waited = [one for one in asked if one.fate is Fate.WAIT and one.deserved is Verdict.PASSED]
    first, second, third = waited[:3]
    told = course.told[first.request.request_id]
    course.told[first.request.request_id] = dataclasses.replace(told, message="another answer")
    del course.told[second.request.request_id]
    mistaken = dataclasses.replace(third, deserved=Verdict.CRASHED)
    again = dataclasses.replace(first.request, request_id=str(uuid.uuid4()), fresh=True)
    async with AsyncEvaluatorClient(served.address) as client:
        course.told[again.request_id] = await client.evaluate(again)
    unknown = dataclasses.replace(first.request, request_id=str(uuid.uuid4()))
    more = [dataclasses.replace(first, request=one) for one in (again, unknown)]
    faults = await examine(served.address, [mistaken if one is third else one for one in asked] + more, course, 60.0)
    missed = [one.split()[0] for one in faults.lost]
    assert missed == [first.request.request_id, second.request.request_id, unknown.request_id]
    assert [one.split()[0] for one in faults.wrong] == [third.request.request_id]
    assert len(faults.doubled) == 1
    assert "2 measurements" in faults.doubled[0]


def test_what_keeps_a_benchmark_from_its_figures_is_said(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async def measure(settings: dict[str, object]) -> None:
        with server(folder, settings) as one:
            await one.ready()

    assert exit_status(lambda: asyncio.run(measure({"no_such_setting": 1})) or 0) == NOT_MEASURED
    said = capfd.readouterr().err
    assert "no_such_setting" in said, "the end of the log"
    assert said.splitlines()[-1] == "not measured: NotMeasured: the evaluator ended with 2 before it served"

    def among_tasks() -> int:
        raise ExceptionGroup("tasks", [ExceptionGroup("more", [NotMeasured("the evaluator has ended")])])

    assert exit_status(among_tasks) == NOT_MEASURED
    assert "NotMeasured: the evaluator has ended" in capfd.readouterr().err
    with pytest.raises(ZeroDivisionError):
        exit_status(lambda: 1 // 0)


def test_the_same_seed_asks_the_same() -> None:
    assert draw(1, 50, 5, 1.0, MADE_UP) == draw(1, 50, 5, 1.0, MADE_UP) != draw(2, 50, 5, 1.0, MADE_UP)
