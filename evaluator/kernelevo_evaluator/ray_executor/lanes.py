"""The lanes of a cluster: one worker for each GPU, replaced when it, its device or its host is lost."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import ray
import structlog
from ray.exceptions import RayError, RayTaskError

from kernelevo_evaluator.ray_executor.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelevo_evaluator.executor import ExecutorFacts
    from kernelevo_evaluator.ray_executor.worker import Look

ALIVE_S = 5.0
"""Between two words of an idle worker."""
CLOSE_S = 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 60.0

_log = structlog.get_logger("kernelevo.evaluator")


class Lane:
    """One worker, from the moment it is asked for until it is lost."""

    def __init__(self, number: int, worker: Any) -> None:
        self.number = number
        self.worker = worker
        self.facts: ExecutorFacts | None = None
        self.look: Look | None = None
        """How it was doing a few seconds ago."""
        self.room = 0
        """Calls that are useful at once."""
        self.calls = 0
        self.started = False
        """Whether it may hold sandboxes, which `close` ends."""

    @property
    def ready(self) -> bool:
        """Whether it can take another call."""
        return self.facts is not None and self.calls < self.room


class Lanes:
    """Keeps `count` workers alive.

    Args:
        options: what each worker claims of the cluster, as Ray's `options` takes it.
        arguments: of each worker.
        silence_s: how long a worker may say nothing before it is killed.
    """

    def __init__(self, count: int, options: dict[str, Any], arguments: tuple[Any, ...], silence_s: float) -> None:
        self._count = count
        self._options = options
        self._arguments = arguments
        self._silence_s = silence_s
        self._class = ray.remote(Worker)
        self._lanes: dict[int, Lane] = {}
        self._minders: list[asyncio.Task[None]] = []
        self.changed = asyncio.Condition()
        self.failures: dict[int, BaseException] = {}
        """Why workers of this number could not start, the last time; empty for those that did."""

    def open(self, fits: Callable[[ExecutorFacts], str]) -> None:
        """Ask for the workers. `fits` says why one is of no use; empty where it is."""
        self._minders = [asyncio.create_task(self._mind(number, fits)) for number in range(self._count)]

    @property
    def up(self) -> list[Lane]:
        """Those that hold their device, busy or not."""
        return [lane for lane in self._lanes.values() if lane.facts is not None]

    async def take(self) -> Lane:
        """A lane with room for a call, the least busy, as soon as there is one; give it back."""
        async with self.changed:
            await self.changed.wait_for(lambda: any(lane.ready for lane in self._lanes.values()))
            lane = min((one for one in self._lanes.values() if one.ready), key=lambda one: one.calls)
            lane.calls += 1
            return lane

    async def give_back(self, lane: Lane) -> None:
        """The call on it has ended."""
        async with self.changed:
            lane.calls -= 1
            self.changed.notify_all()

    def kill(self, lane: Lane) -> None:
        """End a worker that does not stop when told to; another takes its place."""
        with contextlib.suppress(Exception):
            ray.kill(lane.worker)

    async def close(self) -> None:
        """End every worker and release its device."""
        for minder in self._minders:
            minder.cancel()
        await asyncio.gather(*self._minders, return_exceptions=True)
        lanes, self._lanes = list(self._lanes.values()), {}
        await asyncio.gather(*(self._close(lane) for lane in lanes))

    async def _close(self, lane: Lane) -> None:
        if lane.started:
            with contextlib.suppress(RayError, TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await lane.worker.close.remote()
        self.kill(lane)

    async def _mind(self, number: int, fits: Callable[[ExecutorFacts], str]) -> None:
        pause = _FIRST_PAUSE_S
        while True:
            # Never restarted by Ray: a new process has to be told to start, and its place in the count is ours to keep.
            lane = Lane(number, self._class.options(**self._options).remote(*self._arguments))
            self._lanes[number] = lane
            reason = ""
            try:
                # Without a limit: where the cluster has no GPU left this is what makes it grow.
                facts, room = await lane.worker.start.remote()
                lane.started = True
                reason = fits(facts)
                if not reason:
                    pause = _FIRST_PAUSE_S
                    await self._set(lane, facts, room)
                    _log.info("lane up", lane=number, device=facts.devices[0].id)
                    reason = await self._until_lost(lane)
            except RayTaskError as error:
                self.failures[number] = error.cause or error
                reason = f"it cannot start: {error.cause or error}"
            except RayError as error:
                # An actor that died, whatever of: Ray's own memory monitor and a lost node have classes of their own.
                reason = f"its worker is lost: {error}"
            except Exception as error:  # whatever it is, a lane without a minder would be lost for good
                _log.exception("a lane's minder failed", lane=number)
                reason = f"{type(error).__name__}: {error}"
            _log.warning("lane lost", lane=number, reason=reason)
            await self._set(lane, None, 0)
            await self._close(lane)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def _until_lost(self, lane: Lane) -> str:
        pause = 0.0
        while True:
            try:
                async with asyncio.timeout(pause + self._silence_s):
                    lane.look = await lane.worker.alive.remote(pause)
            except TimeoutError:
                return f"its worker said nothing for {self._silence_s:g} s"
            if not lane.look.healthy:
                return "its device cannot be used any more"
            pause = ALIVE_S

    async def _set(self, lane: Lane, facts: ExecutorFacts | None, room: int) -> None:
        async with self.changed:
            lane.facts, lane.room = facts, room
            if facts is not None:
                self.failures.pop(lane.number, None)
            self.changed.notify_all()
