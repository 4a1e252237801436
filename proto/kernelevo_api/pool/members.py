"""Who belongs to a pool: finds evaluators, asks them what they are, sets them aside and takes them back.

Chooses none and sends no work.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kernelevo_api.errors import EvaluatorError
from kernelevo_api.pool.devices import describe, one_kind
from kernelevo_api.pool.discovery import ListUnreadable
from kernelevo_api.pool.endpoint import Endpoint
from kernelevo_api.pool.notices import Change, Notice

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kernelevo_api.pool.discovery import Place, Source
    from kernelevo_api.pool.endpoint import EvaluatorTransport, PoolSettings
    from kernelevo_api.types import DeviceRequirement

_GRAIN_S = 0.05
"""Looks at one evaluator that are closer together than this are one look."""


class Members:
    """The evaluators of a pool.

    Args:
        endpoints: ones that are there from the start.
        sources: where others are found.
        connect: makes the connection to a place; needed where there are sources.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        sources: Sequence[Source],
        connect: Callable[[Place], EvaluatorTransport] | None,
        settings: PoolSettings,
    ) -> None:
        self.endpoints = list(endpoints)
        self.sources = tuple(sources)
        self.device: DeviceRequirement | None = None
        """The one kind that the pool's requests run on; set when it connects."""
        self.others: tuple[DeviceRequirement, ...] = ()
        """Kinds that single requests may ask for beside it."""
        self.on_notice: Callable[[Notice], None] | None = None
        self.news = asyncio.Event()
        """Set, and replaced by a new one, whenever an evaluator may be sent requests that could not be before."""
        self._connect = connect
        self._settings = settings
        self._places: dict[Source, tuple[Place, ...]] = {}
        self._unreadable: dict[Source, str] = {}
        self._unusable: set[str] = set()

    def tell(self, change: Change, name: str, reason: str = "") -> None:
        """Say what became of an evaluator."""
        if self.on_notice is not None:
            self.on_notice(Notice(change, name, reason))

    def woken(self) -> None:
        """Somebody may be waiting for what has just become possible."""
        news, self.news = self.news, asyncio.Event()
        news.set()

    async def refresh(self) -> None:
        """Ask the sources where evaluators are; new ones join, ones that are gone get no more work."""
        await asyncio.gather(*(self._ask_source(source) for source in self.sources))
        wanted = {place.target: place for places in self._places.values() for place in places}
        have = {
            endpoint.place.target for endpoint in self.endpoints if endpoint.place is not None and not endpoint.leaving
        }
        for endpoint in self.endpoints:
            if endpoint.place is not None and endpoint.place.target not in wanted and not endpoint.leaving:
                endpoint.leaving = True
                if endpoint.known and not endpoint.unfit:
                    self.tell(Change.LEFT, endpoint.name)
        for target, place in wanted.items():
            if target not in have and target not in self._unusable:
                self._add(place)
        await self.bury()

    def _add(self, place: Place) -> None:
        assert self._connect is not None
        try:
            transport = self._connect(place)
        except ValueError as error:
            self._unusable.add(place.target)
            self.tell(Change.LEFT_OUT, place.name, str(error))
            return
        # Down until it has said what it is.
        new = Endpoint(name=place.name, transport=transport, place=place, up=False)
        new.down.set()
        self.endpoints.append(new)

    async def bury(self) -> None:
        """Close the connections of those that left and hold nothing of ours any more."""
        gone = [endpoint for endpoint in self.endpoints if endpoint.leaving and endpoint.outstanding == 0]
        for endpoint in gone:
            self.endpoints.remove(endpoint)
            await endpoint.transport.close()

    async def _ask_source(self, source: Source) -> None:
        if source in self._places and not source.changes:
            return
        try:
            self._places[source] = await source.places()
        except ListUnreadable as error:
            if self._unreadable.get(source) != str(error):
                self._unreadable[source] = str(error)
                self.tell(Change.LIST_UNREADABLE, source.name, str(error))
        else:
            self._unreadable.pop(source, None)

    @property
    def unreadable(self) -> tuple[str, ...]:
        """Why sources cannot say where their evaluators are."""
        return tuple(self._unreadable.values())

    async def look(self, endpoint: Endpoint) -> bool:
        """Ask an evaluator that is down what it is, and take it back if it answers; whether it is up."""
        async with endpoint.lock:
            now = asyncio.get_running_loop().time()
            if endpoint.up or now - endpoint.looked_at < _GRAIN_S:
                return endpoint.up
            try:
                async with asyncio.timeout(self._settings.look_timeout_s):
                    endpoint.capabilities = await endpoint.transport.get_capabilities()
            except EvaluatorError as error:
                endpoint.trouble = str(error)
            except TimeoutError:
                endpoint.trouble = f"{endpoint.name} does not answer within {self._settings.look_timeout_s:g} s"
            else:
                if endpoint.serving:
                    self._take_back(endpoint)
            finally:
                endpoint.looked_at = asyncio.get_running_loop().time()
            return endpoint.up

    async def meet(self, wanted: DeviceRequirement | None, others: Sequence[DeviceRequirement] = ()) -> tuple[str, ...]:
        """Ask everyone what it is, and settle on one kind of device; returns why some are not used.

        Args:
            others: kinds that single requests will ask for: who has those is kept too.
        """
        self.others = tuple(others)
        everyone = [one for one in self.endpoints if not one.leaving]
        for endpoint in everyone:
            endpoint.up, endpoint.known, endpoint.looked_at = False, True, -1e9
            endpoint.back.clear()
        listener, self.on_notice = self.on_notice, None
        try:
            await asyncio.gather(*(self.look(endpoint) for endpoint in everyone))
        finally:
            self.on_notice = listener
        # Judged again in the order of the list: which of two names of one evaluator counts is not left to chance.
        answered = [one for one in everyone if one.up]
        distinct: list[Endpoint] = []
        for endpoint in answered:
            endpoint.unfit = self._known_as(endpoint, distinct)
            if not endpoint.unfit:
                distinct.append(endpoint)
        self.device = one_kind(
            ((one.share(None), one.capabilities.devices) for one in distinct if one.capabilities is not None), wanted
        )
        troubles = []
        for endpoint in everyone:
            if not endpoint.up:
                endpoint.known = False
                endpoint.down.set()
                troubles.append(endpoint.trouble)
                self.tell(Change.LOST, endpoint.name, endpoint.trouble)
                continue
            if not endpoint.unfit:
                endpoint.unfit = self._lacks(endpoint, self.device or wanted)
            if endpoint.unfit:
                troubles.append(f"{endpoint.name}: {endpoint.unfit}")
                self.tell(Change.LEFT_OUT, endpoint.name, endpoint.unfit)
        return tuple(troubles)

    @property
    def of_use(self) -> tuple[Endpoint, ...]:
        """Those that have said what they are and are used, whether they answer at the moment or not."""
        return tuple(
            one for one in self.endpoints if not one.leaving and not one.unfit and one.capabilities is not None
        )

    def _take_back(self, endpoint: Endpoint) -> None:
        endpoint.up, endpoint.trouble = True, ""
        endpoint.down.clear()
        endpoint.back.set()
        # It may have come back without its store.
        endpoint.registered.clear()
        self._judge(endpoint)
        if endpoint.unfit:
            return
        self.tell(Change.RETURNED if endpoint.known else Change.JOINED, endpoint.name)
        endpoint.known = True
        self.woken()

    def _judge(self, endpoint: Endpoint) -> None:
        """Decide whether an evaluator that answers is of use: its device, and that it is not one that is known already."""
        before = endpoint.unfit
        others = [one for one in self.endpoints if one is not endpoint and one.up and not one.leaving and not one.unfit]
        endpoint.unfit = self._known_as(endpoint, others)
        if not endpoint.unfit:
            endpoint.unfit = self._lacks(endpoint, self.device)
        if endpoint.unfit and endpoint.unfit != before:
            self.tell(Change.LEFT_OUT, endpoint.name, endpoint.unfit)

    def _lacks(self, endpoint: Endpoint, device: DeviceRequirement | None) -> str:
        """Why an evaluator has no device of use here; empty where it has one."""
        if any(endpoint.share(kind) for kind in (device, *self.others)):
            return ""
        return f"it has no healthy device that is {' or '.join(map(describe, (device, *self.others)))}"

    @staticmethod
    def _known_as(endpoint: Endpoint, others: Sequence[Endpoint]) -> str:
        instance = endpoint.capabilities.instance_id if endpoint.capabilities is not None else ""
        for other in others:
            if instance and other.capabilities is not None and other.capabilities.instance_id == instance:
                return f"it is the same evaluator as {other.name}"
        return ""

    def set_aside(self, endpoint: Endpoint, reason: str) -> None:
        """Send it nothing until it is back."""
        endpoint.trouble = reason
        was_up, endpoint.up = endpoint.up, False
        endpoint.down.set()
        endpoint.back.clear()
        if was_up and not endpoint.unfit and not endpoint.leaving:
            endpoint.known = True
            self.tell(Change.LOST, endpoint.name, reason)
            for other in self.endpoints:
                # Another name of it may still lead there.
                if other.up and other.unfit:
                    self._judge(other)

    async def close(self) -> None:
        """Close every connection."""
        await asyncio.gather(*(endpoint.transport.close() for endpoint in self.endpoints))
