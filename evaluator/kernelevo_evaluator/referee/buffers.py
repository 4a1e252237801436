"""Memory that the referee lends to a runner, seen here as slots of one layout.

A runner can rewrite its mapping at any moment, so whatever is compared is copied out first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kernelevo_evaluator.messages.layout import ITEM_SIZE
from kernelevo_evaluator.referee.spaces import HostMemory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelevo_evaluator.messages.layout import Layout, TensorSpec
    from kernelevo_evaluator.referee.spaces import Space

_WORD = 8
POISON = 0xFF
"""Every byte of an output slot before a block: NaN in every floating dtype, -1 in the integers."""

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in ITEM_SIZE}


class Region:
    """`slots` slots of one layout in memory of their own, of the host where no other space is named."""

    def __init__(self, layout: Layout, slots: int, label: str, space: Space | None = None) -> None:
        self.layout = layout
        self.slots = slots
        size = layout.nbytes * slots
        self._memory = HostMemory(size, label) if space is None else space.allocate(size, label)
        self._bytes = self._memory.bytes
        self._views: dict[int, list[torch.Tensor]] = {}
        self.fd = self._memory.fd

    def close(self) -> None:
        """Give the memory back (once no view of it is left)."""
        self._views.clear()
        del self._bytes
        self._memory.close()

    def _slot(self, slot: int) -> torch.Tensor:
        base = slot * self.layout.nbytes
        return self._bytes[base : base + self.layout.nbytes]

    def views(self, slot: int) -> list[torch.Tensor]:
        """Flat tensors over a slot, of each spec's dtype: to be written, or read at the reader's risk."""
        if slot not in self._views:
            memory = self._slot(slot)
            self._views[slot] = [flat_view(memory, spec) for spec in self.layout.tensors]
        return self._views[slot]

    def copy_out(self, slot: int, into: torch.Tensor | None = None) -> torch.Tensor:
        """A private copy of a slot's bytes, uint8 [layout.nbytes]."""
        if into is None:
            return self._slot(slot).clone()
        return into.copy_(self._slot(slot))

    def write(self, slot: int, tensors: Sequence[torch.Tensor]) -> None:
        """Put flat tensors of the layout's dtypes into a slot."""
        for view, tensor in zip(self.views(slot), tensors, strict=True):
            view.copy_(tensor)

    def poison(self, slot: int) -> None:
        """Fill a slot with `POISON`."""
        poison(self._slot(slot))


def poison(memory: torch.Tensor) -> None:
    """Fill bytes with `POISON`, uint8 whose last dimension is dense. A GPU does so faster by words."""
    sizes = (memory.storage_offset(), memory.shape[-1], *memory.stride()[:-1])
    if all(size % _WORD == 0 for size in sizes):
        memory.view(torch.int64).fill_(-1)
    else:
        memory.fill_(POISON)


def flat_view(memory: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """One tensor of a slot's bytes, flat, in storage order."""
    return memory[spec.offset : spec.offset + spec.nbytes].view(DTYPES[spec.dtype])


def tensors_of(layout: Layout, memory: torch.Tensor) -> list[torch.Tensor]:
    """Flat tensors over private bytes of one slot."""
    return [flat_view(memory, spec) for spec in layout.tensors]


def shaped(flat: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """A flat tensor in storage order, with the shape and strides of its spec."""
    return flat.as_strided(spec.shape, spec.stride) if spec.numel else flat.reshape(spec.shape)
