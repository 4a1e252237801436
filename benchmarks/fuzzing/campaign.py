"""Everything at once against one server: messages and garbage, while others hold their connections and say nothing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fuzzing.calls import Tally, send_all
from fuzzing.connections import half_open, held, idle, slow_readers, throw_garbage

if TYPE_CHECKING:
    from collections.abc import Callable

    from server_process import Server


class _Ended(Exception):
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
    crash: int | None = None
    """Exit status of a server that ended by itself. Who was being answered then stands in `tally.cut_off`."""


async def carry_out(plan: Plan, server: Server, tell: Callable[[str], None] = lambda _: None) -> Outcome:
    """Send all of it to a server that is ready, or as much of it as the server outlives."""
    outcome = Outcome()
    try:
        await _attack(plan, server, outcome, tell)
    except (OSError, _Ended, ExceptionGroup):
        # Whatever broke on this side, a server that has ended is why.
        if await server.lives():
            raise
        outcome.crash = server.process.returncode
    return outcome


async def _attack(plan: Plan, server: Server, outcome: Outcome, tell: Callable[[str], None]) -> None:
    async def batch(index: int) -> None:
        numbers = range(plan.messages * index // plan.batches, plan.messages * (index + 1) // plan.batches)
        # Added to as it goes: what was tried before a crash is part of what came of it.
        await send_all(server.address, plan.seed, numbers, outcome.tally, server.lives)
        if outcome.tally.cut_off:
            raise _Ended
        await check(f"after batch {index + 1}")
        held_bytes = server.resident_bytes()
        if held_bytes is None:
            raise _Ended
        outcome.resident_bytes.append(held_bytes)
        tell(f"{outcome.tally.tried} messages, {outcome.tally.faulty} faults, {held_bytes >> 20} MiB")

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
