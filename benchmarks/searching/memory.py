"""A run's log and texts in memory, by a clock that the simulation sets: the store's twin for runs that nobody reads again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from kernelevo_searcher.events import Event, Record, text_digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


class MemoryStore:
    """What `Journal` asks of a store."""

    def __init__(self) -> None:
        self.now_s = 0.0
        """Of the simulation's clock."""
        self._records: list[Record] = []
        self._texts: dict[str, str] = {}

    def clock(self) -> datetime:
        """What time it is in the simulation."""
        return _BEGIN + timedelta(seconds=self.now_s)

    def append(self, *events: Event, texts: Iterable[str] = (), at: datetime | None = None) -> tuple[Record, ...]:
        """Keep events and the texts that they refer to."""
        at = at or self.clock()
        first = len(self._records) + 1
        records = tuple(Record(sequence=first + offset, time=at, event=event) for offset, event in enumerate(events))
        self._records += records
        self._texts |= {text_digest(text): text for text in texts}
        return records

    def records(self, *, after: int = 0) -> Iterator[Record]:
        """The log from the event after the given one."""
        yield from self._records[after:]

    def text(self, digest: str) -> str:
        """The text under this digest; a `KeyError` where there is none."""
        return self._texts[digest]
