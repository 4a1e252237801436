"""NVIDIA GPUs as devices: found through NVML, which needs no context on them, and named by what a sandbox has to be given."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kernelevo_api.types import ArithmeticRate, CheckedOn, Device, DeviceKind, Language, LanguageSupport
from kernelevo_evaluator.languages.toolkit import cuda_root
from kernelevo_sandbox.gpu import nvidia_devices

if TYPE_CHECKING:
    from pathlib import Path

    from kernelevo_evaluator.messages.referee import MachineFacts


class NoGpu(Exception):
    """No usable GPU; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU of this host, or one MIG instance, which is a device of its own with a part of its GPU's memory and processors."""

    uuid: str
    """As CUDA_VISIBLE_DEVICES takes it; of an instance "MIG-…"."""
    name: str
    architecture: str
    """By its compute capability, e.g. "sm_90"."""
    minor: int
    memory_bytes: int
    driver: str
    cpus: frozenset[int]
    """Cores that are near to it; empty where the host does not say."""
    parent: str = ""
    """UUID of the GPU that an instance is a part of."""
    instance: tuple[int, int] | None = None
    """Its numbers there, as GPU instance and as compute instance."""

    @property
    def nodes(self) -> tuple[Path, ...]:
        """Device nodes that a sandbox needs for it, and for no other one."""
        return nvidia_devices(self.minor, self.instance)

    @property
    def environment(self) -> dict[str, str]:
        """What a process must be told to use it, and it alone."""
        environment = {
            "CUDA_VISIBLE_DEVICES": self.uuid,
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            # torch asks NVML whether there is a device: a fork after that can still use CUDA.
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
            "CUDA_CACHE_PATH": "/tmp/cuda",
            # numpy's threads compute nothing here, and each of them has to be woken and stopped with its process.
            "OPENBLAS_NUM_THREADS": "1",
        }
        for name in ("LD_LIBRARY_PATH", "CUDA_HOME"):
            if os.environ.get(name):
                environment[name] = os.environ[name]
        home = cuda_root()
        if home is not None:
            environment["CUDA_HOME"] = str(home)
            environment["PATH"] = f"{home / 'bin'}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
        return environment


def find_gpus() -> tuple[Gpu, ...]:
    """The GPUs of this host that a process may use, in the order of their bus; CUDA_VISIBLE_DEVICES narrows them.

    A GPU in MIG mode cannot be used as a whole: its instances take its place, and each is a device.

    Raises:
        NoGpu: NVML or the driver is missing, or shows none.
    """
    try:
        import pynvml
    except ImportError as error:
        raise NoGpu("nvidia-ml-py is not installed: pip install 'kernelevo[cuda]'") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NoGpu(f"NVML does not answer ({error}): is the NVIDIA driver installed?") from error
    try:
        numbered = [(n, gpu) for n in range(pynvml.nvmlDeviceGetCount()) for gpu in _describe(pynvml, n)]
    except pynvml.NVMLError as error:
        raise NoGpu(f"NVML: {error}") from error
    finally:
        pynvml.nvmlShutdown()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        asked = [name.strip() for name in visible.split(",") if name.strip()]
        numbered = [(n, gpu) for n, gpu in numbered if any(_names(one, n, gpu) for one in asked)]
    if not numbered:
        raise NoGpu(
            "NVML shows no GPU (or CUDA_VISIBLE_DEVICES hides them all, or one is in MIG mode without an instance)"
        )
    return tuple(gpu for _, gpu in numbered)


def _names(asked: str, index: int, gpu: Gpu) -> bool:
    """Whether an entry of CUDA_VISIBLE_DEVICES means this device, or the GPU that it is an instance of."""
    names = [gpu.uuid, *([gpu.parent] if gpu.parent else [])]
    return asked == str(index) or (len(asked) > 4 and any(name.startswith(asked) for name in names))


def _describe(pynvml: Any, index: int) -> tuple[Gpu, ...]:
    """The GPU of this index; in MIG mode its instances."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    cpus: frozenset[int] = frozenset()
    try:
        words = pynvml.nvmlDeviceGetCpuAffinity(handle, (os.cpu_count() or 1) // 64 + 1)
        cpus = frozenset(64 * w + bit for w, word in enumerate(words) for bit in range(64) if word >> bit & 1)
    except pynvml.NVMLError:
        pass  # not every host says
    whole = Gpu(
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        architecture="sm_{}{}".format(*pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
        minor=pynvml.nvmlDeviceGetMinorNumber(handle),
        memory_bytes=pynvml.nvmlDeviceGetMemoryInfo(handle).total,
        driver=_text(pynvml.nvmlSystemGetDriverVersion()),
        cpus=cpus,
    )
    instances = _instances(pynvml, handle)
    if instances is None:
        return (whole,)
    return tuple(
        replace(
            whole,
            uuid=_text(pynvml.nvmlDeviceGetUUID(one)),
            name=_text(pynvml.nvmlDeviceGetName(one)),
            memory_bytes=pynvml.nvmlDeviceGetMemoryInfo(one).total,
            parent=whole.uuid,
            instance=(pynvml.nvmlDeviceGetGpuInstanceId(one), pynvml.nvmlDeviceGetComputeInstanceId(one)),
        )
        for one in instances
    )


def _instances(pynvml: Any, handle: Any) -> list[Any] | None:
    """Handles of a GPU's MIG instances; `None`: it is not in MIG mode."""
    try:
        mode, _ = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError:
        return None  # a GPU, or a driver, that has no such mode
    if mode != pynvml.NVML_DEVICE_MIG_ENABLE:
        return None
    found = []
    for number in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        # Numbers of instances that were not made answer that they were not found.
        with contextlib.suppress(pynvml.NVMLError):
            found.append(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number))
    return found


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def gpu_device(gpu: Gpu, cpus: frozenset[int], facts: MachineFacts) -> Device:
    """One GPU, with what the lane's referee measured on it."""
    assert facts.gpu is not None
    return Device(
        id=gpu.uuid,
        kind=DeviceKind.CUDA,
        name=gpu.name,
        architecture=facts.gpu.architecture,
        multiprocessors=facts.gpu.multiprocessors,
        shared_memory_per_block_bytes=facts.gpu.shared_memory_per_block_bytes,
        shared_memory_per_multiprocessor_bytes=facts.gpu.shared_memory_per_multiprocessor_bytes,
        registers_per_multiprocessor=facts.gpu.registers_per_multiprocessor,
        l2_bytes=facts.cache_bytes,
        memory_bytes=facts.gpu.memory_bytes,
        measured_bandwidth_gb_per_s=facts.copy_gb_per_s,
        measured_rates=tuple(ArithmeticRate(dtype=dtype, tflop_per_s=rate) for dtype, rate in facts.rates.items()),
        driver_version=gpu.driver,
        healthy=True,
        cpus=tuple(sorted(cpus)),
    )


def share_cpus(gpus: tuple[Gpu, ...], usable: frozenset[int]) -> tuple[frozenset[int], ...]:
    """Cores for each GPU's lane: of those near to it, its share among the GPUs that are near to the same ones."""
    shares: list[frozenset[int]] = []
    for gpu in gpus:
        near = (gpu.cpus & usable) or usable
        neighbours = [other for other in gpus if ((other.cpus & usable) or usable) & near]
        ordered, place, count = sorted(near), neighbours.index(gpu), len(neighbours)
        mine = ordered[place * len(ordered) // count : (place + 1) * len(ordered) // count]
        shares.append(frozenset(mine or ordered))
    return tuple(shares)


def gpu_languages(*, nvcc: bool, triton: bool, pycuda: bool, cute: bool) -> tuple[LanguageSupport, ...]:
    """The languages that a host with GPUs takes, by what is installed on it."""
    notes = [
        (Language.TORCH, True, "Plain torch operators on the GPU."),
        (
            Language.TRITON,
            triton,
            "tl.dot uses TF32 unless told input_precision='ieee'; compiled at the first call, untimed.",
        ),
        (
            Language.CUDA_INLINE,
            nvcc,
            "torch's load_inline with cuda_sources; built for this device's architecture alone, in a sandbox, and cached.",
        ),
        (
            Language.PYCUDA,
            pycuda and nvcc,
            "pycuda.compiler.SourceModule on torch's primary context: import pycuda.autoprimaryctx, pass tensor.data_ptr().",
        ),
        (Language.CUTE, cute, "CuTe DSL (nvidia-cutlass-dsl)."),
    ]
    return tuple(
        LanguageSupport(language=language, device_kind=DeviceKind.CUDA, checked_on=CheckedOn.DEVICE, notes=note)
        for language, available, note in notes
        if available
    )
