"""Requests between the moment they are accepted and the moment their evaluation is stored, whoever is connected meanwhile.

Streams attach to a request and go; when the last one has gone, the request has `grace_s` to see one of them come back. Decides
nothing else: who carries a request out, and what is written of it, is not known here.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from kernelevo_api.types import Evaluation, Progress, Stage

if TYPE_CHECKING:
    from kernelevo_evaluator.scheduler import Ticket
    from kernelevo_evaluator.store import AcceptedRequest

ProgressListener = Callable[[Progress], None]


@dataclass(eq=False, slots=True, kw_only=True)
class OpenRequest:
    """A request that is accepted and whose evaluation is not stored yet."""

    accepted: AcceptedRequest
    result: asyncio.Future[Evaluation]
    listeners: list[ProgressListener] = field(default_factory=list)
    streams: int = 0
    latest: Progress | None = None
    ticket: Ticket[Any] | None = None
    """For the work at hand: the problem's audit, then the evaluation."""
    submitted: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once it waits for work, or has ended without."""
    expiry: asyncio.TimerHandle | None = None
    unsaved: tuple[Evaluation, str | None] | None = None
    """An evaluation that the store did not take, with its cache key."""
    stopping: bool = False
    ending: bool = False
    """Its end is on the way into the store: it is too late to stop it."""

    def tell(self, stage: Stage, message: str, position: int | None) -> None:
        """Pass a stage on to whoever is attached."""
        self.latest = self._progress(stage, message, position)
        for listener in tuple(self.listeners):
            listener(self.latest)

    @property
    def progress(self) -> Progress:
        """Where it is."""
        return self.latest or self._progress(Stage.ADMIT, "accepted", None)

    def _progress(self, stage: Stage, message: str, position: int | None) -> Progress:
        return Progress(
            evaluation_id=self.accepted.evaluation_id,
            stage=stage,
            message=message,
            time=datetime.now(UTC),
            queue_position=position,
        )


class OpenRequests:
    """All open requests of one server, by both of their ids. Belongs to one event loop."""

    def __init__(self, grace_s: float, give_up: Callable[[OpenRequest], None]) -> None:
        """`give_up` is called with a request whose streams have all been gone for `grace_s` seconds."""
        self._grace_s = grace_s
        self._give_up = give_up
        self._by_request: dict[str, OpenRequest] = {}
        self._by_evaluation: dict[str, OpenRequest] = {}
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._by_request

    def lock(self, request_id: str) -> asyncio.Lock:
        """For one call at a time of each request_id between "have we seen it" and "it is accepted"."""
        lock = self._locks.get(request_id)
        if lock is None:
            lock = self._locks[request_id] = asyncio.Lock()
        return lock

    def open(self, accepted: AcceptedRequest) -> OpenRequest:
        """A request that was accepted just now."""
        opened = OpenRequest(accepted=accepted, result=asyncio.get_running_loop().create_future())
        opened.result.add_done_callback(_retrieve)
        self._by_request[accepted.request_id] = opened
        self._by_evaluation[accepted.evaluation_id] = opened
        return opened

    def find(self, *, request_id: str | None = None, evaluation_id: str | None = None) -> OpenRequest | None:
        """An open request by one of its ids."""
        if request_id is not None:
            return self._by_request.get(request_id)
        return self._by_evaluation.get(evaluation_id or "")

    def close(self, opened: OpenRequest) -> None:
        """Forget a request: from here on the store answers for it."""
        self._by_request.pop(opened.accepted.request_id, None)
        self._by_evaluation.pop(opened.accepted.evaluation_id, None)
        _stay(opened)

    def attach(self, opened: OpenRequest, listener: ProgressListener) -> asyncio.Future[Evaluation]:
        """One more stream; what it gets in the end. Being cancelled there cancels the waiting, not the request."""
        opened.streams += 1
        opened.listeners.append(listener)
        _stay(opened)
        listener(opened.progress)
        return asyncio.shield(opened.result)

    def detach(self, opened: OpenRequest, listener: ProgressListener) -> None:
        """One stream less; the last one's end begins the grace period."""
        opened.streams -= 1
        opened.listeners.remove(listener)
        if opened.streams == 0 and not opened.result.done():
            opened.expiry = asyncio.get_running_loop().call_later(self._grace_s, self._expire, opened)

    def keep_all(self) -> None:
        """Give none up any more: the server ends, and what is left goes on at its next start."""
        for opened in self._by_request.values():
            _stay(opened)

    def _expire(self, opened: OpenRequest) -> None:
        if opened.streams == 0 and not opened.result.done():
            self._give_up(opened)


def _stay(opened: OpenRequest) -> None:
    if opened.expiry is not None:
        opened.expiry.cancel()
        opened.expiry = None


def _retrieve(future: asyncio.Future[Evaluation]) -> None:
    # A request may end with nobody attached.
    if not future.cancelled():
        future.exception()
