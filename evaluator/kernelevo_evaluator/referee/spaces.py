"""Where a lane's tensors live: the host's memory or one GPU's. The referee knows the difference here, and hardly elsewhere."""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import weakref
from typing import TYPE_CHECKING, Protocol

import torch

from kernelevo_evaluator.referee import effort
from kernelevo_evaluator.referee.awake import Awake
from kernelevo_evaluator.referee.overhead import Answers

if TYPE_CHECKING:
    from collections.abc import Callable


class Memory(Protocol):
    """Memory that was lent to another process."""

    fd: int
    """What the other process maps it by."""
    bytes: torch.Tensor
    """All of it, uint8, as seen here."""

    def close(self) -> None:
        """Give it back, once no view of it is left."""
        ...


class Space(Protocol):
    """A kind of memory, and what timing on it costs and needs."""

    device: torch.device
    cache_bytes: int
    """Of the last-level cache; twice as much is swept out before every block."""
    ring_bytes: int
    """Most memory for one side's ring of inputs and outputs."""
    ring_slots: int
    memory_bytes: int
    """All that there is."""
    block_seconds: float
    """About how long a block of the baseline lasts."""
    spins: bool
    """Whether the referee has a core to itself while it waits for a block to end."""
    awake: Awake
    """Entered while something is timed."""
    answers: Answers
    """How soon references answered here."""
    asynchronous: bool
    """Whether calls are launched and run later, so that a runner's own time of a block holds a first launch and a last wait."""
    rehearsed: int
    """Calls of a side on old content just before each of its blocks: it was frozen, and its caches are another side's."""
    lone_calls: bool
    """Whether blocks of a single call tell whether the calls of a block share work."""
    renews_all: bool
    """Whether a trusted side too gets new content for each block: how long it stood still before then equals the others'."""
    drift_blocks: int
    """Most blocks of the first look at what the baseline does once the candidate is gone."""
    kept_bytes: int
    """Most memory for samples that wait to be checked."""
    arena: bool
    """Whether a model's outputs are read where they lie (see `runner.arena`)."""

    def allocate(self, nbytes: int, label: str) -> Memory:
        """Memory that a runner can map."""
        ...

    def synchronize(self) -> None:
        """Wait until everything that this process started on the device is done."""
        ...


class HostMemory:
    """A sealed memfd. The size is sealed: a runner that could shrink the file would kill the referee with SIGBUS."""

    def __init__(self, nbytes: int, label: str) -> None:
        self.fd = os.memfd_create(f"kernelevo-{label}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        # Whoever forgets a region, by an exception or by replacing it, gives its memory back too.
        self._close: Callable[[], object] = weakref.finalize(self, os.close, self.fd)
        os.ftruncate(self.fd, nbytes)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self._map = mmap.mmap(self.fd, nbytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self.bytes = torch.frombuffer(self._map, dtype=torch.uint8)

    def close(self) -> None:
        del self.bytes, self._map
        self._close()


class HostSpace:
    """The host's memory: what the processor computes on."""

    device = torch.device("cpu")
    ring_bytes = effort.RING_BYTES
    ring_slots = effort.RING_SLOTS
    block_seconds = effort.BLOCK_SECONDS
    spins = False
    asynchronous = False
    rehearsed = 0
    renews_all = False
    lone_calls = True
    drift_blocks = effort.DRIFT_BLOCKS
    kept_bytes = effort.KEPT_BYTES
    arena = False

    def __init__(self, cache_bytes: int) -> None:
        self.cache_bytes = cache_bytes
        self.answers = Answers(math.inf)
        self.awake = Awake(None)
        self.memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def allocate(self, nbytes: int, label: str) -> Memory:
        return HostMemory(nbytes, label)

    def synchronize(self) -> None:
        """Nothing is ever under way."""


class DeviceMemory:
    """A block of the GPU's memory in an allocation of its own."""

    def __init__(self, nbytes: int) -> None:
        from kernelevo_evaluator.device_memory import Block

        block = Block.allocate(nbytes)
        self.fd = block.fileno()
        self.bytes = torch.as_tensor(block, device="cuda")[:nbytes]
        self._block = block

    def close(self) -> None:
        del self.bytes, self._block


class DeviceSpace:
    """The memory of the lane's GPU."""

    device = torch.device("cuda")
    ring_slots = effort.DEVICE_RING_SLOTS
    block_seconds = effort.DEVICE_BLOCK_SECONDS
    asynchronous = True
    rehearsed = effort.DEVICE_REHEARSED
    renews_all = True
    lone_calls = False
    drift_blocks = effort.DRIFT_BLOCKS
    kept_bytes = effort.DEVICE_KEPT_BYTES
    arena = True

    def __init__(self, timed_core: int | None) -> None:
        """`timed_core`: the one that runners are pinned to, where it is not the referee's too."""
        self.spins = timed_core is not None
        self.answers = Answers(effort.DISTURBED_US)
        self.awake = Awake(timed_core)
        torch.cuda.init()
        properties = torch.cuda.get_device_properties(0)
        self.cache_bytes = int(properties.L2_cache_size)
        self.memory_bytes = int(properties.total_memory)
        self.ring_bytes = int(properties.total_memory * effort.DEVICE_RING_SHARE)

    def allocate(self, nbytes: int, label: str) -> Memory:
        return DeviceMemory(nbytes)

    def synchronize(self) -> None:
        torch.cuda.synchronize()
