"""NVML as nvidia-ml-py shows it (the module `pynvml`), made up: GPUs, MIG instances, and who holds how much of their memory."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest


class FakeError(Exception):
    """As `pynvml.NVMLError`."""


class FakeNotSupported(FakeError):
    """As `pynvml.NVMLError_NotSupported`."""


@dataclass(eq=False)
class FakeInstance:
    """A MIG instance."""

    uuid: str
    name: str
    numbers: tuple[int, int]
    memory: int = 18 << 30
    processes: dict[int, int | None] = field(default_factory=dict)


@dataclass(eq=False)
class FakeGpu:
    """A GPU; `instances` is `None` where it knows no MIG mode, and has a `None` for each number without an instance."""

    uuid: str
    minor: int = 0
    memory: int = 141 << 30
    name: str = "NVIDIA H200"
    instances: list[FakeInstance | None] | None = None
    mig: bool = True
    processes: dict[int, int | None] = field(default_factory=dict)
    drawing: dict[int, int | None] | None = field(default_factory=dict)
    """`None`: it cannot draw."""


class FakeNvml(ModuleType):
    """Install it with `install`; `answers = False` and every question fails."""

    NVMLError = FakeError
    NVMLError_NotSupported = FakeNotSupported
    NVML_DEVICE_MIG_ENABLE = 1

    def __init__(self, *gpus: FakeGpu) -> None:
        super().__init__("pynvml")
        self.gpus = gpus
        self.answers = True
        self.opened = 0
        self.looks = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
        monkeypatch.setitem(sys.modules, "pynvml", self)
        return self

    def _ask(self) -> None:
        if not self.answers or self.opened == 0:
            raise FakeError("Uninitialized" if self.answers else "GPU is lost")

    def nvmlInit(self) -> None:
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlDeviceGetCount(self) -> int:
        self._ask()
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu | FakeInstance:
        for gpu in self.gpus:
            for one in (gpu, *(gpu.instances or ())):
                if one is not None and one.uuid == uuid:
                    return one
        raise FakeError("Not Found")

    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        return str(handle.uuid)

    def nvmlDeviceGetName(self, handle: Any) -> bytes:
        return str(handle.name).encode()  # as older releases of the library give texts

    def nvmlDeviceGetCudaComputeCapability(self, handle: FakeGpu) -> tuple[int, int]:
        return 9, 0

    def nvmlDeviceGetMinorNumber(self, handle: FakeGpu) -> int:
        return handle.minor

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> SimpleNamespace:
        return SimpleNamespace(total=handle.memory)

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.95"

    def nvmlDeviceGetCpuAffinity(self, handle: FakeGpu, words: int) -> list[int]:
        return [0b1111, *[0] * (words - 1)]

    def nvmlDeviceGetMigMode(self, handle: FakeGpu) -> list[int]:
        if handle.instances is None:
            raise FakeError("Not Supported")
        return [int(handle.mig), int(handle.mig)]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: FakeGpu) -> int:
        return len(handle.instances or ())

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: FakeGpu, index: int) -> FakeInstance:
        found = (handle.instances or [])[index]
        if found is None:
            raise FakeError("Not Found")
        return found

    def nvmlDeviceGetGpuInstanceId(self, handle: FakeInstance) -> int:
        return handle.numbers[0]

    def nvmlDeviceGetComputeInstanceId(self, handle: FakeInstance) -> int:
        return handle.numbers[1]

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Any) -> list[SimpleNamespace]:
        self._ask()
        self.looks += 1
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in handle.processes.items()]

    def nvmlDeviceGetGraphicsRunningProcesses_v3(self, handle: Any) -> list[SimpleNamespace]:
        self._ask()
        drawing = getattr(handle, "drawing", None)  # an instance has none
        if drawing is None:
            raise FakeNotSupported("Not Supported")
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in drawing.items()]
