"""Device memory that crosses between processes as a file descriptor (CUDA's virtual memory management).

Each block is an allocation of its own, so that nothing else can be reached through it. Referee and runner both use it, on the
primary context that torch has made current; torch itself is not needed here.
"""

from __future__ import annotations

import os
import weakref
from typing import Any

from cuda.bindings import driver


class DeviceMemoryError(Exception):
    """The driver refused; `out_of_memory` says whether for want of memory."""

    def __init__(self, call: str, code: Any) -> None:
        super().__init__(f"{call}: {getattr(code, 'name', code)}")
        self.out_of_memory = code == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY


class Block:
    """Bytes on the device, mapped into this process. Give it to `torch.as_tensor`, which keeps it alive."""

    def __init__(self, pointer: int, nbytes: int, descriptor: int | None = None) -> None:
        """To be had by `allocate` and `attach`."""
        self.pointer = pointer
        self.nbytes = nbytes
        self._descriptor = descriptor
        self._unmap = weakref.finalize(self, _unmap, pointer, nbytes)
        self._unmap.atexit = False
        self._close = weakref.finalize(self, os.close, descriptor) if descriptor is not None else None

    @staticmethod
    def allocate(nbytes: int) -> Block:
        """A new block of at least `nbytes`, with a descriptor that another process can attach.

        Raises:
            DeviceMemoryError: the device has no such memory left.
        """
        properties = _properties()
        granularity = _checked(
            "cuMemGetAllocationGranularity",
            driver.cuMemGetAllocationGranularity(
                properties, driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
            ),
        )
        size = max(1, (nbytes + granularity - 1) // granularity) * granularity
        handle = _checked("cuMemCreate", driver.cuMemCreate(size, properties, 0))
        try:
            descriptor = int(
                _checked(
                    "cuMemExportToShareableHandle",
                    driver.cuMemExportToShareableHandle(handle, _DESCRIPTOR, 0),
                )
            )
            os.set_inheritable(descriptor, False)
            return Block(_map(handle, size), size, descriptor)
        finally:
            # The mapping and the descriptor keep the memory.
            driver.cuMemRelease(handle)

    @staticmethod
    def attach(descriptor: int, nbytes: int) -> Block:
        """Map what another process allocated. The descriptor stays the caller's to close.

        Raises:
            DeviceMemoryError: it is no such descriptor, or holds less than `nbytes`.
        """
        handle = _checked(
            "cuMemImportFromShareableHandle", driver.cuMemImportFromShareableHandle(descriptor, _DESCRIPTOR)
        )
        try:
            granularity = _checked(
                "cuMemGetAllocationGranularity",
                driver.cuMemGetAllocationGranularity(
                    _properties(), driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
                ),
            )
            size = max(1, (nbytes + granularity - 1) // granularity) * granularity
            return Block(_map(handle, size), size)
        finally:
            driver.cuMemRelease(handle)

    def fileno(self) -> int:
        """The descriptor to send to another process."""
        assert self._descriptor is not None, "attached, not allocated here"
        return self._descriptor

    def part(self, offset: int, nbytes: int) -> Part:
        """Some of it."""
        return Part(self, self.pointer + offset, nbytes)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (self.pointer, False), "version": 3}


class Part:
    """A part of a block, which it keeps alive."""

    def __init__(self, block: Block, pointer: int, nbytes: int) -> None:
        self._block = block
        self._pointer = pointer
        self._nbytes = nbytes

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (self._nbytes,), "typestr": "|u1", "data": (self._pointer, False), "version": 3}


_DESCRIPTOR = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


def _checked(call: str, result: tuple[Any, ...]) -> Any:
    if result[0] != driver.CUresult.CUDA_SUCCESS:
        raise DeviceMemoryError(call, result[0])
    return result[1] if len(result) > 1 else None


def _properties() -> Any:
    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    # A lane's processes see one device.
    properties.location.id = 0
    properties.requestedHandleTypes = _DESCRIPTOR
    return properties


def _map(handle: Any, size: int) -> int:
    pointer = _checked("cuMemAddressReserve", driver.cuMemAddressReserve(size, 0, 0, 0))
    try:
        _checked("cuMemMap", driver.cuMemMap(pointer, size, 0, handle, 0))
        access = driver.CUmemAccessDesc()
        access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access.location.id = 0
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        _checked("cuMemSetAccess", driver.cuMemSetAccess(pointer, size, [access], 1))
    except DeviceMemoryError:
        driver.cuMemAddressFree(pointer, size)
        raise
    return int(pointer)


def _unmap(pointer: int, nbytes: int) -> None:
    # Work that still uses the memory must be over before its addresses go.
    driver.cuCtxSynchronize()
    driver.cuMemUnmap(pointer, nbytes)
    driver.cuMemAddressFree(pointer, nbytes)
