"""Whether lanes can still be trusted with work. One that cannot is kept from it, and looked at again from time to time.

What a candidate does to its own context ends with its process. What it does to a device may not: a kernel that nothing ends, a
driver that lost the device. The lane's referee, which has a context of its own there, computes something known; where it fails
twice, the second time as a fresh process, the lane is quarantined. So is one whose device's memory nobody can watch any more.
(Whether the host still isolates is `lanes.isolation`'s.)
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kernelevo_api.types import Verdict
from kernelevo_evaluator.executor import ExecutorFault
from kernelevo_evaluator.messages.referee import ProbeDevice

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kernelevo_evaluator.lanes.lane import Lane

SUSPICIOUS = frozenset(
    {
        Verdict.RUNTIME_ERROR,
        Verdict.TIMEOUT,
        Verdict.OUT_OF_MEMORY,
        Verdict.CRASHED,
        Verdict.SANDBOX_VIOLATION,
        Verdict.TIMING_DISPUTED,
    }
)
"""Verdicts after which a device is looked at before the next candidate gets it."""
PROBE_SECONDS = 20.0
AGAIN_SECONDS = 60.0


class LaneHealth:
    """Which lanes are out of service, and why."""

    def __init__(self, again_seconds: float = AGAIN_SECONDS) -> None:
        self._again_seconds = again_seconds
        self._reasons: dict[Lane, str] = {}
        self._looking: dict[Lane, asyncio.Task[None]] = {}

    @property
    def reasons(self) -> Mapping[Lane, str]:
        """Lanes out of service."""
        return self._reasons

    async def examine(self, lane: Lane) -> bool:
        """Let the lane's referee compute something known. To be called with the lane's `exclusive` held."""
        reason = ""
        for _ in range(2):
            try:
                referee = await lane.referee()
                await referee.job(ProbeDevice(), (), None, PROBE_SECONDS)
            except ExecutorFault as fault:
                reason = str(fault)
            else:
                if reason := await lane.memory_unwatched():
                    break
                self._reasons.pop(lane, None)
                return True
        self.withdraw(lane, reason)
        return False

    def withdraw(self, lane: Lane, reason: str) -> None:
        """Keep work from a lane until it is found well again."""
        self._reasons[lane] = reason
        if lane not in self._looking:
            self._looking[lane] = asyncio.create_task(self._look_again(lane))

    async def _look_again(self, lane: Lane) -> None:
        try:
            while True:
                await asyncio.sleep(self._again_seconds)
                async with lane.exclusive:
                    if await self.examine(lane):
                        return
        finally:
            self._looking.pop(lane, None)

    async def close(self) -> None:
        """Look no further."""
        tasks = list(self._looking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
