"""What the referee holds of a side's ring: its slots, and where the outputs of a block lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelevo_evaluator.referee.buffers import POISON, Region

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
        tensors = self.outputs.layout.tensors
        ranges = sorted(
            (place, place + tensors[index % len(tensors)].nbytes) for index, place in enumerate(self.places)
        )
        merged: list[tuple[int, int]] = []
        for begin, end in ranges:
            # Small gaps are the allocator's rounding.
            if merged and begin <= merged[-1][1] + 512:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((begin, end))
        for begin, end in merged:
            self.arena.bytes[begin:end].fill_(POISON)
        self.places = ()

    def close(self) -> None:
        """Give the memory back."""
        for memory in (self.inputs, self.outputs, self.expected, self.arena):
            if memory is not None:
                memory.close()
