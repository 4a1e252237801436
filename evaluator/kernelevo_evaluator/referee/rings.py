"""What the referee holds of a side's ring: its slots, and where the outputs of a block lie."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernelevo_evaluator.referee.buffers import POISON, Region, poison
from kernelevo_evaluator.referee.probes import Probes

if TYPE_CHECKING:
    import torch

    from kernelevo_evaluator.referee.spaces import Memory

CHECK_RING = 0
TIMING_RING = 1


@dataclass(slots=True)
class Rings:
    """What one side has mapped under one ring number."""

    inputs: Region
    outputs: Region
    expected: Region | None = None
    arena: Memory | None = None
    """Where the model's outputs are allocated, in a space that has arenas."""
    places: tuple[int, ...] = ()
    """Where the outputs of the last block lie in the arena, call by call."""
    captured: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """The same of each captured graph, by its number of calls."""

    _probes: Probes | None = None

    def choose_probes(self, calls: int) -> Probes | None:
        """New secret places in the outputs of a block of so many calls; none in a space without arenas."""
        if self.arena is None:
            return None
        self._probes = self._probes or Probes(self)
        self._probes.choose(calls)
        return self._probes

    @property
    def late(self) -> int:
        """How many of the bytes that were read before the last block's clock stopped are others now."""
        return self._probes.changed() if self._probes is not None else 0

    @property
    def arena_bytes(self) -> int:
        """Size of the arena; 0 without one."""
        return self.arena.bytes.numel() if self.arena is not None else 0

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What a runner maps, in the order of `MapRing`."""
        memories = (self.inputs, self.outputs, self.expected, self.arena)
        return tuple(memory.fd for memory in memories if memory is not None)

    def copy_output(self, call: int, slot: int, into: torch.Tensor) -> None:
        """A private copy of what one call of the last block returned, by the output's layout.

        Where it lies is the runner's claim: a wrong one copies what is compared and found wrong, or nothing but the poison.
        """
        if self.arena is None:
            self.outputs.copy_out(slot, into)
            return
        tensors = self.outputs.layout.tensors
        places = self.places[call * len(tensors) : (call + 1) * len(tensors)]
        if (
            len(places) < len(tensors)
            or max(place + spec.nbytes for spec, place in zip(tensors, places, strict=True)) > self.arena.bytes.numel()
        ):
            into.fill_(POISON)
            return
        for spec, place in zip(tensors, places, strict=True):
            into[spec.offset : spec.offset + spec.nbytes] = self.arena.bytes[place : place + spec.nbytes]

    def poison_arena(self) -> None:
        """Make what the last block left in the arena useless."""
        if self.arena is None:
            return
        for begin, length, count, distance in _stretches(
            self.places, tuple(spec.nbytes for spec in self.outputs.layout.tensors), self.arena.bytes.numel()
        ):
            poison(self.arena.bytes.as_strided((count, length), (distance, 1), begin))
        self.places = ()

    def close(self) -> None:
        """Give the memory back."""
        self._probes = None
        for memory in (self.inputs, self.outputs, self.expected, self.arena):
            if memory is not None:
                memory.close()


@functools.lru_cache(maxsize=16)
def _stretches(places: tuple[int, ...], sizes: tuple[int, ...], total: int) -> list[tuple[int, int, int, int]]:
    """What the outputs at these places cover of an arena, call by call: begin and length of a range, how many such there are,
    and bytes from one to the next. They lie regularly as a rule, and graphs have the same places again and again.

    Places are a runner's claims: one that lies outside of the arena's `total` bytes is nothing to be made useless.
    """
    ranges: list[list[int]] = []
    spans = [(place, place + sizes[index % len(sizes)]) for index, place in enumerate(places)]
    for begin, end in sorted(span for span in spans if span[1] <= total):
        # Small gaps are the allocator's rounding.
        if ranges and begin <= ranges[-1][1] + 512:
            ranges[-1][1] = max(end, ranges[-1][1])
        else:
            ranges.append([begin, end])
    found: list[tuple[int, int, int, int]] = []
    for begin, end in ranges:
        if found:
            first, length, count, distance = found[-1]
            apart = begin - (first + (count - 1) * distance)
            if end - begin == length and (count == 1 or apart == distance):
                found[-1] = (first, length, count + 1, apart)
                continue
        found.append((begin, end - begin, 1, end - begin))
    return found


def allocated_bytes(nbytes: int, count: int) -> int:
    """What torch's allocator takes of a device for `count` tensors of `nbytes` each.

    Tensors of up to 1 MiB share segments of 2 MiB, those of up to 10 MiB segments of 20 MiB, and what is left of a segment stays
    empty; larger ones have one each, in steps of 2 MiB (torch's c10/cuda/CUDACachingAllocator).
    """
    mebibyte = 1 << 20
    block = max(1, math.ceil(nbytes / 512)) * 512
    if block > 10 * mebibyte:
        return count * math.ceil(block / (2 * mebibyte)) * 2 * mebibyte
    segment = (2 if block <= mebibyte else 20) * mebibyte
    return math.ceil(count / (segment // block)) * segment
