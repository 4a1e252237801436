"""Where the time of a timing goes, by purpose: what a person may want to know, and what the defences cost."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFENCES = ("fresh inputs", "checked calls", "lone calls", "drift")
"""Purposes that an evaluator of honest code could leave out."""


class Spent:
    """Seconds by purpose; a purpose within another one counts as itself alone."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._open: list[str] = []
        self._since = 0.0

    @contextmanager
    def on(self, purpose: str) -> Iterator[None]:
        """What happens meanwhile is for this."""
        self._settle()
        self._open.append(purpose)
        try:
            yield
        finally:
            self._settle()
            self._open.pop()

    def _settle(self) -> None:
        now = time.monotonic()
        if self._open:
            self.seconds[self._open[-1]] = self.seconds.get(self._open[-1], 0.0) + now - self._since
        self._since = now

    def describe(self) -> str:
        """E.g. "timed blocks 1.20 s, fresh inputs 0.31 s"."""
        return ", ".join(f"{purpose} {seconds:.3f} s" for purpose, seconds in self.seconds.items())
