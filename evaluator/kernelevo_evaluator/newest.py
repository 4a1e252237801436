"""A mapping that keeps the newest few of its entries."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable

K = TypeVar("K", bound="Hashable")
V = TypeVar("V")


class Newest(Generic[K, V]):
    """Keeps so many entries; one more, and the one that is oldest goes: that was put in, or used, the longest ago.

    Putting in what is there already replaces its value where it stands.
    """

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._entries: OrderedDict[K, V] = OrderedDict()

    def __setitem__(self, key: K, value: V) -> None:
        self._entries[key] = value
        if len(self._entries) > self._kept:
            self._entries.popitem(last=False)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """Its value, if it is there; it grows no younger."""
        return self._entries.get(key)

    def use(self, key: K) -> V | None:
        """Its value, if it is there; it is the newest from now on."""
        found = self._entries.get(key)
        if found is not None:
            self._entries.move_to_end(key)
        return found

    def forget(self, key: K) -> None:
        """Take it out, if it is there."""
        self._entries.pop(key, None)
