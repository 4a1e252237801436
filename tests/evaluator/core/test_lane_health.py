"""A lane that cannot compute is kept from work, and returns when it can."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from kernelevo_evaluator.executor import ExecutorFault
from kernelevo_evaluator.lanes.cores import Cores
from kernelevo_evaluator.lanes.health import LaneHealth
from kernelevo_evaluator.lanes.referee_process import RefereeProcess
from kernelevo_evaluator.lanes.runners import usable_cpus
from kernelevo_evaluator.messages.referee import ProbeDevice


class OneLane:
    """A lane as far as its health goes: real referees, of which the first few may be made to fail."""

    def __init__(self, broken: int = 0):
        self.exclusive = asyncio.Lock()
        self.broken = broken
        self.started = 0
        self._referee = None

    async def referee(self):
        if self._referee is None or not self._referee.alive:
            self.started += 1
            if self.started <= self.broken:
                raise ExecutorFault("the referee did not come up: no device")
            self._referee = await RefereeProcess.start(Cores.of(usable_cpus(), gpu=False))
        return self._referee

    async def memory_unwatched(self):
        return ""

    async def close(self):
        if self._referee is not None:
            await self._referee.close()


@pytest.mark.asyncio
async def test_a_referee_computes_what_is_known():
    lane, health = OneLane(), LaneHealth()
    try:
        assert await health.examine(lane)
        assert not health.reasons
        assert await (await lane.referee()).job(ProbeDevice(), (), None, 20) == b""
    finally:
        await lane.close()


@pytest.mark.asyncio
async def test_a_referee_that_died_is_replaced_before_anything_is_blamed():
    lane, health = OneLane(), LaneHealth()
    try:
        referee = await lane.referee()
        os.kill(referee._process.pid, signal.SIGKILL)
        assert await health.examine(lane)
        assert lane.started == 2
        assert not health.reasons
    finally:
        await lane.close()


@pytest.mark.asyncio
async def test_a_lane_that_fails_twice_is_out_of_service_until_it_works_again():
    lane, health = OneLane(broken=3), LaneHealth(again_seconds=0.01)
    try:
        assert not await health.examine(lane)
        assert "no device" in health.reasons[lane]
        async with asyncio.timeout(60):
            while health.reasons:
                await asyncio.sleep(0.05)
        assert lane.started == 4
    finally:
        await health.close()
        await lane.close()
