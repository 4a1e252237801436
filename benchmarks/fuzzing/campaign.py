"""Everything at once against one server: messages and garbage, while others hold their connections and say nothing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fuzzing.calls import Tally, send_all
from fuzzing.connections import half_open, held, idle, slow_readers, throw_garbage

if TYPE_CHECKING:
    from collections.abc import Callable

    from fuzzing.process import Server


class ServerEnded(Exception):
    """The server is no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much of each."""

    seed: int
    messages: int
    garbage: int
    """Connections that send garbage."""
    idle: int
    half_open: int
    slow: int
    """Connections whose calls are answered and whose answers may not be sent."""
    batches: int = 10
    """Parts that the messages are sent in; health is asked for after each."""


@dataclass
class Outcome:
    """What came of it."""

    tally: Tally = field(default_factory=Tally)
    unhealthy: list[str] = field(default_factory=list)
    """When the server did not say that it serves."""
    resident_bytes: list[int] = field(default_factory=list)
    """The server's memory after each batch; the first one is sent before any connection is held."""


async def carry_out(plan: Plan, server: Server, tell: Callable[[str], None] = lambda _: None) -> Outcome:
    """Send all of it to a server that is ready.

    Raises:
        ServerEnded: it crashed.
    """
    outcome = Outcome()

    async def batch(index: int) -> None:
        numbers = range(plan.messages * index // plan.batches, plan.messages * (index + 1) // plan.batches)
        tally = await send_all(server.address, plan.seed, numbers)
        outcome.tally = outcome.tally.with_more(tally)
        await check(f"after batch {index + 1}")
        if server.process.poll() is not None:
            raise ServerEnded(
                f"the server ended with {server.process.returncode}; messages up to {numbers.stop} were sent"
            )
        outcome.resident_bytes.append(server.resident_bytes())
        tell(f"{outcome.tally.tried} messages, {outcome.tally.faulty} faults, {outcome.resident_bytes[-1] >> 20} MiB")

    async def check(when: str) -> None:
        if not await server.healthy():
            outcome.unhealthy.append(when)

    await batch(0)
    openings = idle(plan.idle) + half_open(plan.seed, plan.half_open) + slow_readers(plan.seed, plan.slow)
    async with held(server.address, openings):
        await check(f"with {len(openings)} connections held")
        async with asyncio.TaskGroup() as group:
            group.create_task(throw_garbage(server.address, plan.seed, plan.garbage))
            for index in range(1, plan.batches):
                await batch(index)
    await check("at the end")
    return outcome
