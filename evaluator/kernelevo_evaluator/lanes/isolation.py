"""Whether this host still isolates what runs on it: tried at the start, at intervals, and after each failure of our own.

A control group can go, an engine end, a program be removed, a folder for temporary files fill up. Then nothing more is begun,
what is under way is stopped (its end would be the host's doing, not the candidate's), and it goes on when the guarantees hold
again.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from kernelevo_evaluator.executor import ExecutorFault
from kernelevo_sandbox import Guarantee, SandboxError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from contextlib import AbstractAsyncContextManager

    from kernelevo_sandbox import Sandbox

T = TypeVar("T")

LOST_SECONDS = 10.0
"""How long after a look that found a guarantee lost the next one comes, at the latest."""
_PROBE_SECONDS = 120.0
_STARTS = "starts"

_log = structlog.get_logger("kernelevo.evaluator")


class Isolation:
    """What the sandbox was last seen to guarantee. Belongs to one event loop."""

    def __init__(
        self,
        sandbox: Sandbox,
        found: Sequence[Guarantee],
        *,
        seconds: float,
        turn: Callable[[], AbstractAsyncContextManager[frozenset[int]]],
        returned: Callable[[], None],
    ) -> None:
        """
        Args:
            found: by a probe at the start; essential guarantees that did not hold then are not missed later.
            seconds: between two looks.
            turn: entered for a look at an interval; gives the cores on which it disturbs nothing that is timed.
            returned: called when everything holds again.
        """
        self._sandbox = sandbox
        self._at_start = tuple(found)
        self._held = frozenset(one.name for one in found if one.essential and one.holds)
        self._seconds = seconds
        self._turn = turn
        self._returned = returned
        self._lost = asyncio.Event()
        self._checking: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self.guarantees = self._at_start
        """As last seen."""
        self.reason = ""
        """What is lost just now, and what to do; empty while nothing is."""

    def watch(self) -> None:
        """Look at intervals from now on."""
        self._watching = asyncio.create_task(self._watch(), name="isolation")

    async def check(self, cpus: frozenset[int] | None = None) -> str:
        """Look now, or share the look that is under way; returns `reason`."""
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._look(cpus), name="isolation probe")
        await asyncio.shield(self._checking)
        return self.reason

    async def guard(self, work: Coroutine[Any, Any, T]) -> T:
        """Carry `work` out while isolation holds; its processes are gone when this returns or is cancelled.

        Raises:
            ExecutorFault: a guarantee was lost before its end.
        """
        task = asyncio.create_task(work)
        losing = asyncio.create_task(self._lost.wait())
        try:
            await asyncio.wait({task, losing}, return_when=asyncio.FIRST_COMPLETED)
            if not self._lost.is_set():
                return task.result()
        finally:
            losing.cancel()
            task.cancel()  # nothing happens where it is done
            await asyncio.wait({task, losing})
            if not task.cancelled():
                task.exception()  # retrieved, whatever it was
        raise ExecutorFault(f"isolation was lost while it ran: {self.reason}")

    async def _watch(self) -> None:
        while True:
            await self._due()
            try:
                async with self._turn() as cpus:
                    await self.check(cpus)
            except Exception:  # a look that fails must not be the last one
                _log.exception("isolation could not be looked at")

    async def _due(self) -> None:
        """Until the next look. A loss that was found after a fault, and not here, brings it forward."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._seconds):
                await self._lost.wait()
                await asyncio.sleep(LOST_SECONDS)

    async def _look(self, cpus: frozenset[int] | None) -> None:
        found, lost = await self._probe(cpus)
        if lost and not self.reason:
            # Once more before work is stopped for it: a busy host may be late for one of a probe's limits.
            found, lost = await self._probe(cpus)
        self.guarantees = found
        before, self.reason = (
            self.reason,
            "; ".join(f"{one.name} no longer holds: {one.evidence}. {one.remedy}".strip() for one in lost),
        )
        if self.reason:
            self._lost.set()
            if not before:
                _log.error("isolation is lost; no candidate runs until it is back", reason=self.reason)
        elif before:
            self._lost.clear()
            _log.warning("isolation holds again")
            self._returned()

    async def _probe(self, cpus: frozenset[int] | None) -> tuple[tuple[Guarantee, ...], list[Guarantee]]:
        """What is found, and what of it was lost since the start."""
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                found = await self._sandbox.probe(cpus)
        except (SandboxError, TimeoutError) as error:
            none = Guarantee(
                name=_STARTS,
                holds=False,
                evidence=str(error) or f"a probe did not end within {_PROBE_SECONDS:g} s",
                remedy="`kernelevo-evaluator doctor` tries everything anew; work goes on by itself once it holds",
            )
            return (none, *self._at_start), [none]
        # A program that cannot even say what it tried leaves out what held before.
        names = {one.name for one in found}
        lost = [one for one in found if one.essential and not one.holds and one.name in {*self._held, "runs_programs"}]
        if not lost and (missing := self._held - names):
            lost = [one for one in self._at_start if one.name in missing]
        return found, lost

    async def close(self) -> None:
        """Look no further."""
        tasks = [task for task in (self._watching, self._checking) if task is not None]
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
