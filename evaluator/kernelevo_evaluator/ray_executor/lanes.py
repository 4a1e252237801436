"""The lanes of a cluster: one worker for each GPU, replaced when it, its device or its host is lost.

A call may ask to be alone on its worker, or on its whole host. The lane or host is then closed to others until it is empty, and
for as long as the call lasts, so that what is lost meanwhile can be laid to that call.
"""

from __future__ import annotations

import asyncio
import contextlib
from enum import Enum
from typing import TYPE_CHECKING, Any

import ray
import structlog
from ray.exceptions import RayActorError, RayError, RayTaskError

from kernelevo_evaluator.ray_executor.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from kernelevo_evaluator.executor import ExecutorFacts
    from kernelevo_evaluator.ray_executor.worker import Look

ALIVE_S = 5.0
"""Between two words of an idle worker."""
CLOSE_S = 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 60.0

_log = structlog.get_logger("kernelevo.evaluator")


class Scope(Enum):
    """What a call wants for itself."""

    SHARED = "shared"
    """Nothing: others may run on the same worker."""
    LANE = "lane"
    HOST = "host"


class Lane:
    """One worker, from the moment it is asked for until it is lost."""

    def __init__(self, number: int, worker: Any) -> None:
        self.number = number
        self.worker = worker
        self.host = ""
        """The cluster's id of the host that it was placed on; empty before."""
        self.facts: ExecutorFacts | None = None
        self.look: Look | None = None
        """How it was doing a few seconds ago."""
        self.room = 0
        """Calls that are useful at once."""
        self.calls: set[Stay] = set()
        self.started = False
        """Whether it may hold sandboxes, which `close` ends."""
        self.ended = ""
        """Why we ended it for a reason that is no call's own doing; empty where we did not."""

    @property
    def device(self) -> str:
        """Id of its device; empty while it holds none."""
        return self.facts.devices[0].id if self.facts is not None else ""


class Stay:
    """One call's place on a lane. `give_back` it."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.lane: Lane | None = None
        """Where it is, or waits for others to leave."""
        self.device = self.host = ""
        """Of the lane when it got there."""
        self.shared = False
        """Whether another call was on its worker meanwhile."""
        self.beside = False
        """Whether another call was on its host meanwhile, on another worker."""

    def closes(self, lane: Lane) -> bool:
        """Whether it wants a lane for itself."""
        if self.lane is None or self.scope is Scope.SHARED:
            return False
        return lane is self.lane or (self.scope is Scope.HOST and lane.host == self.lane.host)


class Lanes:
    """Keeps `count` workers alive.

    Args:
        options: what each worker claims of the cluster, as Ray's `options` takes it.
        arguments: of each worker.
        silence_s: how long a worker may say nothing before it is killed.
        on_change: called when there may be more or less room than before.
    """

    def __init__(
        self,
        count: int,
        options: dict[str, Any],
        arguments: tuple[Any, ...],
        silence_s: float,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._count = count
        self._options = options
        self._arguments = arguments
        self._silence_s = silence_s
        self._on_change = on_change
        self._class = ray.remote(Worker)
        self._lanes: dict[int, Lane] = {}
        self._claims: set[Stay] = set()
        """Those that want a lane or a host for themselves, and have it or wait for it to empty."""
        self._minders: list[asyncio.Task[None]] = []
        self.changed = asyncio.Condition()
        self.failures: dict[int, str] = {}
        """Why workers of this number could not start, the last time; empty for those that did."""

    def open(self, fits: Callable[[ExecutorFacts], str]) -> None:
        """Ask for the workers. `fits` says why one is of no use; empty where it is."""
        self._minders = [asyncio.create_task(self._mind(number, fits)) for number in range(self._count)]

    @property
    def up(self) -> list[Lane]:
        """Those that hold their device, busy or not."""
        return [lane for lane in self._lanes.values() if lane.facts is not None]

    @property
    def placed(self) -> int:
        """Workers that the cluster has a place for, whether they are ready or not."""
        return sum(bool(lane.host) for lane in self._lanes.values())

    @property
    def room(self) -> int:
        """Calls that are useful at once, on the lanes that are up."""
        total = 0
        for lane in self.up:
            closing = next((one for one in self._claims if one.closes(lane)), None)
            total += lane.room if closing is None else closing.lane is lane
        return total

    def of_host(self, host: str) -> list[Lane]:
        """Those that hold a device of this host."""
        return [lane for lane in self.up if lane.host == host]

    async def take(
        self, scope: Scope = Scope.SHARED, devices: Collection[str] = (), hosts: Collection[str] = ()
    ) -> Stay:
        """A place for a call as soon as there is one, where the least is going on; give it back.

        Args:
            devices, hosts: to be avoided as long as others are up.
        """
        stay = Stay(scope)
        async with self.changed:
            try:
                while not self._settle(stay, devices, hosts):
                    await self.changed.wait()
            except BaseException:
                self._claims.discard(stay)
                self._tell()
                raise
            self._tell()
            return stay

    def _settle(self, stay: Stay, devices: Collection[str], hosts: Collection[str]) -> bool:
        """Put a call on a lane; whether one has room. One that wants to be alone closes a lane or host until that is empty."""
        lane = stay.lane
        if lane is None or lane.facts is None:
            stay.lane = lane = self._choose(stay.scope, devices, hosts)
            if lane is None:
                self._claims.discard(stay)
                return False
            if stay.scope is not Scope.SHARED:
                self._claims.add(stay)
        neighbours = [other for other in self.of_host(lane.host) if other is not lane]
        if stay.scope is not Scope.SHARED and (
            lane.calls or (stay.scope is Scope.HOST and any(one.calls for one in neighbours))
        ):
            return False
        stay.device, stay.host = lane.device, lane.host
        for other in lane.calls:
            stay.shared = other.shared = True
        for other in (call for one in neighbours for call in one.calls):
            stay.beside = other.beside = True
        lane.calls.add(stay)
        return True

    def _choose(self, scope: Scope, devices: Collection[str], hosts: Collection[str]) -> Lane | None:
        """The lane to take, or to close and wait for; those to be avoided only where no other one is up."""
        up = self.up
        wanted = [lane for lane in up if lane.host not in hosts] or up
        wanted = [lane for lane in wanted if lane.device not in devices] or wanted
        able = [lane for lane in wanted if self._open_to(lane, scope)]
        return min(able, key=lambda lane: len(lane.calls), default=None)

    def _open_to(self, lane: Lane, scope: Scope) -> bool:
        if scope is Scope.SHARED:
            return len(lane.calls) < lane.room and not any(one.closes(lane) for one in self._claims)
        lanes = self.of_host(lane.host) if scope is Scope.HOST else [lane]
        return not any(claim.closes(one) for claim in self._claims for one in lanes)

    async def give_back(self, stay: Stay) -> None:
        """The call has ended."""
        async with self.changed:
            self._claims.discard(stay)
            if stay.lane is not None:
                stay.lane.calls.discard(stay)
            self._tell()

    def _tell(self) -> None:
        """With `changed` held."""
        self.changed.notify_all()
        self._on_change()

    def drop(self, lane: Lane, reason: str = "") -> None:
        """Give no more calls to a worker, and end it; another takes its place.

        Args:
            reason: why, where that is not the doing of what runs there.
        """
        lane.facts = None
        lane.ended = lane.ended or reason
        self._kill(lane)

    def _kill(self, lane: Lane) -> None:
        with contextlib.suppress(Exception):
            ray.kill(lane.worker)

    async def close(self) -> None:
        """End every worker and release its device."""
        for minder in self._minders:
            minder.cancel()
        await asyncio.gather(*self._minders, return_exceptions=True)
        lanes, self._lanes = list(self._lanes.values()), {}
        for lane in lanes:
            lane.ended = "the service ends"
        await asyncio.gather(*(self._close(lane) for lane in lanes))

    async def _close(self, lane: Lane) -> None:
        if lane.started:
            with contextlib.suppress(RayError, TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await lane.worker.close.remote()
        self._kill(lane)

    async def _mind(self, number: int, fits: Callable[[ExecutorFacts], str]) -> None:
        pause = _FIRST_PAUSE_S
        while True:
            # Never restarted by Ray: a new process has to be told to start, and its place in the count is ours to keep.
            lane = Lane(number, self._class.options(**self._options).remote(*self._arguments))
            self._lanes[number] = lane
            reason = ""
            try:
                # Without a limit: where the cluster has no GPU left this is what makes it grow.
                lane.host = await lane.worker.host.remote()
                facts, room = await lane.worker.start.remote()
                lane.started = True
                reason = fits(facts)
                if not reason:
                    pause = _FIRST_PAUSE_S
                    await self._set(lane, facts, room)
                    _log.info("lane up", lane=number, device=facts.devices[0].id)
                    reason = await self._until_lost(lane)
            except RayError as error:
                # An actor that died, whatever of: Ray's own memory monitor and a lost node have classes of their own.
                reason = _why(error)
            except Exception as error:  # whatever it is, a lane without a minder would be lost for good
                _log.exception("a lane's minder failed", lane=number)
                reason = f"{type(error).__name__}: {error}"
            if not lane.started:
                self.failures[number] = reason
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
                lane.ended = "its device cannot be used any more"
                return lane.ended
            pause = ALIVE_S

    async def _set(self, lane: Lane, facts: ExecutorFacts | None, room: int) -> None:
        async with self.changed:
            lane.facts, lane.room = facts, room
            if facts is not None:
                self.failures.pop(lane.number, None)
            self._tell()


def _why(error: RayError) -> str:
    """What ended a worker, in the words of what ended it."""
    if isinstance(error, RayTaskError):
        return f"it cannot start: {error.cause or error}"
    lines = [line for line in str(error).splitlines() if line.strip()]
    if isinstance(error, RayActorError) and error.actor_init_failed and lines:
        # Ray tells the constructor's whole traceback.
        return f"it cannot start: {lines[-1].strip()}"
    return f"its worker is lost: {error}"
