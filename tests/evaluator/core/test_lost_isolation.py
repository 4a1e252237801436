"""A host that isolates no more: its lanes are out of service, what ran gets an answer that is ours, and it comes back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from core_bench import HONEST, Bench, settings

from kernelevo_evaluator.executor import ExecutorFault, LaneState
from kernelevo_evaluator.local_executor import LocalExecutor
from kernelevo_sandbox import BubblewrapSandbox
from kernelevo_sandbox.bubblewrap import find_bwrap

if TYPE_CHECKING:
    from pathlib import Path

NEVER_ENDS = HONEST + "\nimport time\ntime.sleep(600)\n"


async def test_bubblewrap_is_removed_while_a_candidate_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bwrap = tmp_path / "bin" / "bwrap"
    bwrap.parent.mkdir()
    bwrap.write_text(f'#!/bin/sh\nexec {find_bwrap()} "$@"\n')
    bwrap.chmod(0o755)
    monkeypatch.setenv("PATH", str(bwrap.parent), prepend=":")
    executor = LocalExecutor(BubblewrapSandbox(), replace(settings(tmp_path), isolation_check_s=0.3))
    try:
        await executor.start()
        bench = Bench(executor)
        job = await bench.job(NEVER_ENDS)
        assert executor.healthy and not executor.device_faults
        assert executor.sandbox is not None and all(one.holds for one in executor.sandbox.guarantees if one.essential)
        running = asyncio.create_task(executor.evaluate(job, bench.tell))
        async with asyncio.timeout(120):
            while executor.lane_states != {"cpu": LaneState.PREPARING}:
                await asyncio.sleep(0.05)
            bwrap.rename(tmp_path / "hidden")
            with pytest.raises(ExecutorFault, match="isolat"):
                await running
        assert not executor.healthy
        assert executor.lane_states == {"cpu": LaneState.OUT_OF_SERVICE}
        assert "could not execute" in executor.device_faults["cpu"] and "doctor" in executor.device_faults["cpu"]
        [lost, *_] = [one for one in executor.sandbox.guarantees if one.essential and not one.holds]
        assert "could not execute" in lost.evidence and lost.remedy
        with pytest.raises(ExecutorFault, match="no device is in service"):
            await bench.judge(HONEST)

        (tmp_path / "hidden").rename(bwrap)
        async with asyncio.timeout(120):
            while not executor.healthy:
                await asyncio.sleep(0.05)
        assert not executor.device_faults and all(one.holds for one in executor.sandbox.guarantees if one.essential)
        await bench.works()
    finally:
        await executor.close()
