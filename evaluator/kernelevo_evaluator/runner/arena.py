"""Where a model's outputs come to lie while it is timed: memory of the referee's, in place of the runner's own.

Copying every output into the referee's memory would cost a memory-bound kernel about as much as the kernel itself. So torch's
allocator is given the referee's memory to allocate from during a block; what the model returns lies there already, and the reply
says where. An output that lies elsewhere (a buffer that the model keeps, memory from another library) is copied, which costs its
author what a copy costs.
"""

from __future__ import annotations

import ctypes
import gc
from typing import TYPE_CHECKING

import torch

from kernelevo_evaluator.device_memory import Block

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

_ALIGNMENT = 512
_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)


class Arena:
    """A block of device memory as a pool of torch's allocator. torch asks for whole segments and keeps them, so that this is
    called a few times only, and never while a block that was prepared is timed."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._used = 0
        self._free: dict[int, list[int]] = {}
        self._spilled: dict[int, Block] = {}
        # Kept: the allocator holds their addresses only.
        self._allocate = _ALLOCATE(self._take)
        self._release = _FREE(self._give)
        self._allocator = torch._C._cuda_customAllocator(_address(self._allocate), _address(self._release))
        self._pool: torch.cuda.MemPool | None = torch.cuda.MemPool(self._allocator)

    def close(self) -> None:
        """Give the memory back, as far as no tensor lies in it. Before the arena is forgotten: torch frees through its callbacks,
        which refer to it and it to them."""
        self._pool = None
        gc.collect()

    def using(self) -> AbstractContextManager[None]:
        """While this is entered, torch allocates here."""
        assert self._pool is not None, "closed"
        context: AbstractContextManager[None] = torch.cuda.use_mem_pool(self._pool)
        return context

    @property
    def identifier(self) -> tuple[int, int]:
        """The pool's, as a graph's capture takes it."""
        assert self._pool is not None, "closed"
        identifier: tuple[int, int] = self._pool.id
        return identifier

    def offset(self, pointer: int, nbytes: int) -> int | None:
        """Where in the arena an address lies; `None` where it does not."""
        offset = pointer - self._block.pointer
        return offset if 0 <= offset <= self._block.nbytes - nbytes else None

    def _take(self, nbytes: int, device: int, stream: int | None) -> int | None:
        size = max(_ALIGNMENT, (nbytes + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT)
        kept = self._free.get(size)
        if kept:
            return kept.pop()
        if self._used + size <= self._block.nbytes:
            pointer = self._block.pointer + self._used
            self._used += size
            return pointer
        # More than was foreseen: memory of the runner's own, whose content is copied like any that lies elsewhere.
        try:
            spilled = Block.allocate(size)
        except Exception:  # an exception cannot leave a callback; torch takes null for "out of memory"
            return None
        self._spilled[spilled.pointer] = spilled
        return spilled.pointer

    def _give(self, pointer: int, nbytes: int, device: int, stream: int | None) -> None:
        if self._spilled.pop(pointer, None) is None:
            size = max(_ALIGNMENT, (nbytes + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT)
            self._free.setdefault(size, []).append(pointer)


def _address(callback: object) -> int:
    address = ctypes.cast(callback, ctypes.c_void_p).value  # type: ignore[arg-type]
    assert address is not None
    return address
