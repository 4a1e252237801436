"""A host that isolates no more: its lane is out of service, and the clients are told so."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from core_bench import HONEST, Bench, settings

from kernelevo_evaluator.executor import ExecutorFault, LaneState
from kernelevo_evaluator.local_executor import LocalExecutor
from kernelevo_sandbox import BubblewrapSandbox

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_lane_whose_sandbox_is_lost_is_out_of_service(tmp_path: Path) -> None:
    sandbox = BubblewrapSandbox()
    executor = LocalExecutor(sandbox, settings(tmp_path))
    try:
        await executor.start()
        bench = Bench(executor)
        await bench.works()
        assert executor.healthy and not executor.device_faults
        assert executor.lane_states == {"cpu": LaneState.IDLE}
        async with asyncio.timeout(60):
            while executor.warm_runners != {"cpu": 2}:  # spares take the place of those that were used
                await asyncio.sleep(0.05)
        await sandbox.close()
        with pytest.raises(ExecutorFault):
            await bench.judge(HONEST)
        assert not executor.healthy
        assert "isolated" in executor.device_faults["cpu"]
        assert executor.lane_states == {"cpu": LaneState.OUT_OF_SERVICE}
        with pytest.raises(ExecutorFault, match="no device is in service"):
            await bench.judge(HONEST)
    finally:
        await executor.close()
