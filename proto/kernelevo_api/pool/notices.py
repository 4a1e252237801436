"""What a pool tells about its evaluators, so that a person learns which host is gone."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Change(Enum):
    """What became of an evaluator."""

    LOST = "lost"
    """It is not asked any more until it is back: it does not answer, drains, has no healthy device, or keeps failing."""
    RETURNED = "returned"
    JOINED = "joined"
    """It was not there when the pool connected."""
    LEFT = "left"
    """Its name is gone from the list; what it was carrying out goes on."""
    LEFT_OUT = "left_out"
    """It was named and is not used: another kind of device, or an evaluator that is known by another name already."""
    LIST_UNREADABLE = "list_unreadable"
    """A name does not resolve or a file cannot be read; what was known stays in use."""


@dataclass(frozen=True, slots=True)
class Notice:
    """One change, for people."""

    change: Change
    evaluator: str
    """Its name: the address as it was given, and which of several where a name stands for several."""
    reason: str = ""

    def __str__(self) -> str:
        words = {
            Change.LOST: "lost",
            Change.RETURNED: "back",
            Change.JOINED: "joined",
            Change.LEFT: "left the list",
            Change.LEFT_OUT: "not used",
            Change.LIST_UNREADABLE: "not refreshed",
        }
        return f"{self.evaluator}: {words[self.change]}" + (f": {self.reason}" if self.reason else "")
