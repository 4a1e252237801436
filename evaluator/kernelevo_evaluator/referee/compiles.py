"""Compilation inside a runner (Triton's, at a kernel's first call): a build in all but its place, so it has a build's limit."""

from __future__ import annotations

import time


class Compiles:
    """What a runner says that it compiles just now, and what of its time for builds is left.

    It says so itself. To lie gains nothing: all that it may have is the stage's time and a build's, once each.
    """

    def __init__(self) -> None:
        self.kernel = ""
        """The kernel's name; empty: nothing is compiled."""
        self.seconds: float | None = None
        """Left for compiling, in all; `None`: it counts as the stage's own work."""
        self._began = 0.0

    @property
    def limited(self) -> bool:
        """Whether the time that passes is a build's."""
        return bool(self.kernel) and self.seconds is not None

    def deadline(self, stage: float | None) -> float | None:
        """Until when to wait, where the stage may take until `stage` (`time.monotonic`)."""
        if not self.limited:
            return stage
        assert self.seconds is not None
        return self._began + self.seconds

    def turn(self, kernel: str) -> float:
        """A compilation begins (`kernel` named) or has ended; returns by how many seconds the stage's end moves on."""
        now, passed = time.monotonic(), 0.0
        if self.limited:
            assert self.seconds is not None
            passed = min(now - self._began, self.seconds)
            self.seconds -= passed
        self.kernel = kernel
        self._began = now
        return passed
