"""What NVML tells of a device's memory, process by process. It sees sandboxed processes from outside, under the caller's pids."""

from __future__ import annotations

from typing import Any


class NvmlFailed(Exception):
    """NVML does not answer, or not what was asked; the message says why."""


class ProcessMemory:
    """The memory that each process holds of one device. Every call may block on the driver: not for an event loop's thread."""

    def __init__(self, uuid: str) -> None:
        """Open NVML on the GPU or MIG instance of this UUID.

        Raises:
            NvmlFailed: there is no NVML, or no such device.
        """
        try:
            import pynvml
        except ImportError as error:
            raise NvmlFailed("nvidia-ml-py is not installed: pip install 'kernelevo[cuda]'") from error
        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise NvmlFailed(f"NVML does not answer: {error}") from error
        try:
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        except pynvml.NVMLError as error:
            pynvml.nvmlShutdown()
            raise NvmlFailed(f"NVML knows no device {uuid}: {error}") from error

    def look(self) -> dict[int, int]:
        """Bytes by pid, of processes that compute or draw on the device; one whose bytes the driver does not tell is left out.

        Raises:
            NvmlFailed: NVML does not answer.
        """
        used: dict[int, int] = {}
        try:
            for process in (
                *self._nvml.nvmlDeviceGetComputeRunningProcesses_v3(self._handle),
                *self._that_draw(),
            ):
                if process.usedGpuMemory is not None:
                    # One that does both stands in both lists with all of its memory.
                    used[process.pid] = max(used.get(process.pid, 0), int(process.usedGpuMemory))
        except self._nvml.NVMLError as error:
            raise NvmlFailed(f"NVML does not tell who holds the device's memory: {error}") from error
        return used

    def _that_draw(self) -> list[Any]:
        """Processes that draw on the device; none where it cannot draw, as MIG instances cannot."""
        try:
            return list(self._nvml.nvmlDeviceGetGraphicsRunningProcesses_v3(self._handle))
        except self._nvml.NVMLError_NotSupported:
            return []

    def close(self) -> None:
        """Give NVML back. Once."""
        self._nvml.nvmlShutdown()
