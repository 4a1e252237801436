"""Keeps an eye on the evaluators of a pool for as long as it runs: their health, their return, and who comes and goes."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

from kernelevo_api.errors import ContractViolation, EvaluatorError

if TYPE_CHECKING:
    from kernelevo_api.pool.endpoint import Endpoint, PoolSettings
    from kernelevo_api.pool.members import Members


async def watch(members: Members, settings: PoolSettings) -> None:
    """Watch until cancelled."""
    minded: dict[Endpoint, asyncio.Task[None]] = {}
    async with asyncio.TaskGroup() as tasks:
        while True:
            if any(source.changes for source in members.sources):
                await members.refresh()
            for endpoint in members.endpoints:
                if endpoint not in minded:
                    minded[endpoint] = tasks.create_task(_mind(members, endpoint, settings))
            for endpoint in tuple(minded):
                if endpoint not in members.endpoints:
                    minded.pop(endpoint).cancel()
            await asyncio.sleep(settings.refresh_s)


async def _mind(members: Members, endpoint: Endpoint, settings: PoolSettings) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_listen(members, endpoint))
        tasks.create_task(_bring_back(members, endpoint, settings))


async def _listen(members: Members, endpoint: Endpoint) -> None:
    """Follow what its health service says; a stream that breaks says that it is gone before any request finds out."""
    while True:
        reason = "its connection ended"
        try:
            async with aclosing(cast("Any", endpoint.transport.watch_health())) as stream:
                async for serving in stream:
                    endpoint.serving = serving
                    if not serving:
                        members.set_aside(endpoint, "it takes no work: it is shutting down, or has no healthy device")
                    elif not endpoint.up:
                        await members.look(endpoint)
        except ContractViolation:
            # It has no health service: requests and looks alone say how it is.
            endpoint.serving = True
            return
        except EvaluatorError as error:
            reason = str(error)
        endpoint.serving = True
        members.set_aside(endpoint, reason)
        # Its return is seen to beside this; the stream is opened again once it answers.
        await endpoint.back.wait()


async def _bring_back(members: Members, endpoint: Endpoint, settings: PoolSettings) -> None:
    """Look at it while it is down, ever less often."""
    while True:
        await endpoint.down.wait()
        delay = settings.probe_s
        while not await members.look(endpoint):
            await asyncio.sleep(delay)
            delay = min(2 * delay, settings.longest_probe_s)
        # One that does not stay up is not asked in a tight circle.
        await asyncio.sleep(settings.probe_s / 4)
