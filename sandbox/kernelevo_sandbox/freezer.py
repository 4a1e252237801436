"""The switch of a control group's freezer: what stops a tree and lets it run, by whoever holds its descriptors."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Freezer:
    """Open descriptors; whoever opened them closes them. Usable in another process that was sent them. A group that is gone
    counts as frozen."""

    state: int
    """Of `cgroup.freeze`, or of version 1's `freezer.state`."""
    events: int | None = None
    """Of `cgroup.events`; none under version 1."""

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What another process needs, in the order of the fields."""
        return (self.state,) if self.events is None else (self.state, self.events)

    def freeze(self) -> bool:
        """Stop every process of the group, or go on stopping; whether none can run any more."""
        try:
            if self.events is not None:
                os.pwrite(self.state, b"1", 0)
                return b"frozen 1" in os.pread(self.events, 256, 0)
            os.pwrite(self.state, b"FROZEN", 0)
            return os.pread(self.state, 32, 0).startswith(b"FROZEN")
        except OSError as failure:
            if failure.errno != errno.ENODEV:
                raise
            return True

    def thaw(self) -> None:
        """Let every process run again."""
        try:
            os.pwrite(self.state, b"THAWED" if self.events is None else b"0", 0)
        except OSError as failure:
            if failure.errno != errno.ENODEV:
                raise

    def close(self) -> None:
        """Close the descriptors."""
        for descriptor in self.descriptors:
            os.close(descriptor)
