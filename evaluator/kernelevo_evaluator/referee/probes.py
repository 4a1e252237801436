"""Bytes of a block's outputs at secret places, read before the clock of the block stops.

Whoever says that its calls are done while some of them still run has that time for nothing. So the clock stops only when the
outputs were looked at, everywhere and at places that nobody can foresee; and what was seen must still be there when the memory is
about to be used again, long after everything that was under way has ended. Work on a share `f` of the outputs that comes late is
seen by a block with a probability of 1 - (1 - f)^`PROBES`: one per cent of them all but surely.

A gather of a few bytes takes some microseconds whatever the outputs' size. Copying whole outputs instead, as much as 134 MB a
call, took 200 us of a block of 3 ms, and not the same 200 us on both sides.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from kernelevo_evaluator.referee.rings import Rings

PROBES = 1024
"""Bytes that are looked at in every block."""


class Probes:
    """The bytes that were looked at in the last block of one side, in its arena."""

    def __init__(self, rings: Rings) -> None:
        assert rings.arena is not None
        self._arena = rings.arena.bytes
        self._sizes = np.array([spec.nbytes for spec in rings.outputs.layout.tensors], dtype=np.int64)
        self._random = np.random.default_rng(secrets.randbits(128))
        device = self._arena.device
        self._at = torch.zeros(PROBES, dtype=torch.int64, device=device)
        self._seen = torch.zeros(PROBES, dtype=torch.uint8, device=device)
        self._tensor = self._within = np.zeros(PROBES, dtype=np.int64)
        self._read = False

    def choose(self, calls: int) -> None:
        """Choose bytes of a block of `calls` calls, each output by how large it is."""
        ends = np.cumsum(self._sizes)
        byte = self._random.integers(0, calls * int(ends[-1]), size=PROBES)
        call, byte = np.divmod(byte, int(ends[-1]))
        of_call = np.searchsorted(ends, byte, side="right")
        self._tensor = call * len(self._sizes) + of_call
        self._within = byte - (ends - self._sizes)[of_call]
        self._read = False

    def aim(self, places: tuple[int, ...]) -> None:
        """Where the outputs lie, in the order of the calls: the runner's claim. What it places outside of its arena is found
        missing where outputs are compared."""
        claimed = np.asarray(places, dtype=np.int64)
        begins = claimed[np.minimum(self._tensor, len(claimed) - 1)] if len(claimed) else np.zeros(PROBES, np.int64)
        at = begins + self._within
        at[(begins < 0) | (at < 0) | (at >= self._arena.numel())] = 0
        self._at.copy_(torch.from_numpy(at))

    def read(self) -> None:
        """Look at them."""
        torch.index_select(self._arena, 0, self._at, out=self._seen)
        self._read = True

    def changed(self) -> int:
        """How many of the bytes that were seen are others now; nothing where none were read since they were chosen."""
        if not self._read:
            return 0
        self._read = False
        return int((self._arena[self._at] != self._seen).sum())
