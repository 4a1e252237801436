"""A bounded queue that is fair to clients: one each in turn, in the order they came. No clock, no tasks."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

T = TypeVar("T")


class Full(Exception):
    """No room; `of_client` says that it is this client's own share that is used up."""

    def __init__(self, message: str, *, of_client: bool) -> None:
        super().__init__(message)
        self.of_client = of_client


@dataclass(frozen=True, slots=True)
class Quota:
    """What one client may take up; `None`: as everyone."""

    queued: int | None = None
    running: int | None = None


class FairQueue(Generic[T]):
    """Items wait behind others of their own client only; between clients it goes round robin."""

    def __init__(self, capacity: int, capacity_per_client: int) -> None:
        self.capacity = capacity
        self.capacity_per_client = capacity_per_client
        self.quotas: Mapping[str, Quota] = {}
        """Of clients that have one of their own."""
        # The client at the front is served next and then goes to the back.
        self._clients: OrderedDict[str, deque[T]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def check(self, client: str, others: int = 0, others_of_client: int = 0) -> None:
        """Raise `Full` where `put` would, if so many others, and so many of this client's, were there too."""
        if self._size + others >= self.capacity:
            raise Full(f"the queue is full: {self._size + others} requests wait", of_client=False)
        waiting = len(self._clients.get(client, ())) + others_of_client
        own = self.quotas.get(client, Quota()).queued
        if waiting >= (self.capacity_per_client if own is None else own):
            raise Full(f"this client's share of the queue is full: {waiting} of its requests wait", of_client=True)

    def put(self, client: str, item: T) -> None:
        """Add an item at the end of its client's own line.

        Raises:
            Full: there is no room.
        """
        self.check(client)
        self.force(client, item)

    def force(self, client: str, item: T) -> None:
        """Add an item beyond any bound: it was promised before."""
        self._clients.setdefault(client, deque()).append(item)
        self._size += 1

    def take(self, passing_over: Container[str] = ()) -> T | None:
        """The next item, or `None`. Clients that are passed over keep their turn."""
        client = next((one for one in self._clients if one not in passing_over), None)
        if client is None:
            return None
        line = self._clients.pop(client)
        item = line.popleft()
        if line:
            self._clients[client] = line
        self._size -= 1
        return item

    def remove(self, item: T) -> bool:
        """Take an item out of the middle; whether it was there."""
        for client, line in self._clients.items():
            if item in line:
                line.remove(item)
                if not line:
                    del self._clients[client]
                self._size -= 1
                return True
        return False

    def position(self, item: T) -> int | None:
        """How many are taken before this one, if nobody else comes; `None` where it does not wait here."""
        lines = list(self._clients.values())
        for mine, line in enumerate(lines):
            if item in line:
                ahead = line.index(item)
                # In every full round before mine each other client is served once; in my round those in front of me.
                return ahead + sum(
                    min(len(other), ahead + (1 if at < mine else 0)) for at, other in enumerate(lines) if at != mine
                )
        return None
