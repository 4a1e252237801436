"""A short soak of the session's service; benchmarks/hostile_soak.py runs the long one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent))

from evaluation_soak import soak

from kernelevo_api.client import AsyncEvaluatorClient
from kernelevo_sandbox.watchdog import descendants

if TYPE_CHECKING:
    from tests.conftest import ServedEvaluator  # type: ignore[import-not-found]

COUNT = 20


async def test_hostile_evaluations_leave_nothing(served_evaluator: ServedEvaluator) -> None:
    server = descendants(served_evaluator.process.pid)[0]
    async with AsyncEvaluatorClient(served_evaluator.address, client_id="soak") as client:
        soaked = await soak(client, server, COUNT, memory=False, warm_up=1)
    assert soaked.escaped == []
    assert soaked.wrong == []
    assert soaked.left == {}, (soaked.before, soaked.after)
