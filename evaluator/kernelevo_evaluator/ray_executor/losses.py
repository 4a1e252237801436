"""Whose doing it was that a worker was lost. Knows of lanes and hosts, not of evaluations.

A loss is laid to a call only where nothing else can have caused it: the call was alone on its worker and on its host (or the
host lives on), we did not end the worker ourselves, and nobody took the host away. After a loss that somebody else may have
caused the call is carried out alone, on a device that was not lost with it, so that the next loss says more: sharing a
worker with what takes it down convicts nobody.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ray.exceptions import RayError

from kernelevo_evaluator.ray_executor import cluster
from kernelevo_evaluator.ray_executor.cluster import Fate
from kernelevo_evaluator.ray_executor.lanes import Scope

if TYPE_CHECKING:
    from kernelevo_evaluator.ray_executor.lanes import Lanes, Stay

LAID_TO_IT = 2
"""Losses, laid to one call, after which it is not tried again."""
MOST = 6
"""Losses of any kind that one call is carried on through."""
NEWS_S = 3.0
"""How long the cluster has to say that a host is gone once its only worker is."""
ANSWER_S = 10.0
"""How long a neighbour of a lost worker has to say that their host lives."""
_LOOK_S = 0.1


@dataclass
class Losses:
    """What one call has lost so far, and how it is to be tried next."""

    count: int = 0
    laid_to_it: int = 0
    scope: Scope = Scope.SHARED
    devices: set[str] = field(default_factory=set)
    hosts: set[str] = field(default_factory=set)

    @property
    def convicts(self) -> bool:
        """Whether workers are lost by the call's own doing."""
        return self.laid_to_it >= LAID_TO_IT

    @property
    def exhausting(self) -> bool:
        """Whether it has lost so many that it is not tried again, whoever's doing it was."""
        return self.count >= MOST

    async def note(self, stay: Stay, lanes: Lanes) -> str:
        """One more loss: the worker of this call ended during it. Returns what is known of why, for the log."""
        self.count += 1
        lane = stay.lane
        assert lane is not None
        if lane.ended:
            return lane.ended
        self.devices.add(stay.device)
        fate = await _fate(stay, lanes)
        if fate is Fate.TAKEN_AWAY:
            self.hosts.add(stay.host)
            return "its host was taken away"
        alone = not stay.shared and (fate is Fate.THERE or not stay.beside)
        if fate is Fate.LOST:
            self.hosts.add(stay.host)
            self.scope = Scope.HOST
        elif self.scope is Scope.SHARED:
            self.scope = Scope.LANE
        self.laid_to_it += alone
        what = "its host was lost" if fate is Fate.LOST else "its worker was lost"
        return what if alone else f"{what} while others ran there"


async def _fate(stay: Stay, lanes: Lanes) -> Fate:
    """What became of the host of a worker that has just been lost."""
    neighbours = [lane for lane in lanes.of_host(stay.host) if lane is not stay.lane]
    if neighbours:
        for lane in neighbours:
            try:
                async with asyncio.timeout(ANSWER_S):
                    await lane.worker.alive.remote(0.0)
            except (RayError, TimeoutError):
                continue
            return Fate.THERE
        # Hosts go worker by worker; that all of them went is answer enough where the cluster has not noticed yet.
        fate = await asyncio.to_thread(cluster.fate_of, stay.host)
        return Fate.LOST if fate is Fate.THERE else fate
    end = asyncio.get_running_loop().time() + NEWS_S
    while (fate := await asyncio.to_thread(cluster.fate_of, stay.host)) is Fate.THERE:
        if asyncio.get_running_loop().time() >= end:
            # Where nothing ran on its other workers it makes no difference; where something did, nobody can tell.
            return Fate.LOST if stay.beside else Fate.THERE
        await asyncio.sleep(_LOOK_S)
    return fate
