"""Uids of their own for sandboxes: a block for each backend that lives on this host, and which of them are in use."""

from __future__ import annotations

import socket

from kernelevo_sandbox.contract import SandboxBroken

FIRST_UID = 1_879_048_192
"""Uids of sandboxes as root: far above what hosts give to people, services and containers."""
UIDS_PER_BACKEND = 1024
_UID_BLOCKS = 1024


class Uids:
    """A block of uids that no other living backend on this host uses, and which of them are in use."""

    def __init__(self) -> None:
        self._lock: socket.socket | None = None
        self._first = 0
        self._next = 0
        self._used: set[int] = set()

    def take(self) -> int:
        """A uid that nobody uses.

        Raises:
            SandboxBroken: all are in use.
        """
        if self._lock is None:
            self._reserve()
        for _ in range(UIDS_PER_BACKEND):
            uid = self._first + self._next
            self._next = (self._next + 1) % UIDS_PER_BACKEND
            if uid not in self._used:
                self._used.add(uid)
                return uid
        raise SandboxBroken(f"{UIDS_PER_BACKEND} sandboxes are alive at once")

    def give_back(self, uid: int) -> None:
        """The sandbox of that uid is gone."""
        self._used.discard(uid)

    def _reserve(self) -> None:
        # An abstract address is a lock that the kernel releases with its holder, and that leaves no file behind.
        lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        for block in range(_UID_BLOCKS):
            try:
                lock.bind(f"\0kernelevo-sandbox-uids-{block}")
            except OSError:
                continue
            self._lock = lock
            self._first = FIRST_UID + block * UIDS_PER_BACKEND
            return
        lock.close()
        raise SandboxBroken("no block of uids is free")

    def close(self) -> None:
        """Give up the block. Idempotent."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
