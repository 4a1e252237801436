"""What doctor says of GPUs, with an NVML that is made up and real processes that would hold memory."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest
from fake_nvml import FakeGpu, FakeNvml

from kernelevo_evaluator.doctor_gpus import examine_gpus
from kernelevo_evaluator.settings import EvaluatorSettings

if TYPE_CHECKING:
    from pathlib import Path

HOLDER = (
    sys.executable,
    "-c",
    "import os, sys; open({!r}, 'w').write(str(os.getpid())); print('up', flush=True); sys.stdin.read()",
)


class Telling(FakeNvml):
    """Knows what the program that wrote its pid into `place` holds."""

    place: Path

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle):  # type: ignore[no-untyped-def]
        self.gpus[0].processes = {int(self.place.read_text()): 1 << 28}
        return super().nvmlDeviceGetComputeRunningProcesses_v3(handle)


@pytest.fixture(autouse=True)
def shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


async def test_memory_that_can_be_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Telling(FakeGpu("GPU-0000")).install(monkeypatch)
    nvml.place = tmp_path / "pid"  # type: ignore[attr-defined]
    holder = (*HOLDER[:2], HOLDER[2].format(str(tmp_path / "pid")))
    gpus, watched = await examine_gpus(EvaluatorSettings(device="cuda"), holder)
    assert gpus.holds and "NVIDIA H200 141 GiB (GPU-0000)" in gpus.evidence
    assert watched.name == "device_memory_limit" and watched.holds
    assert nvml.opened == 0
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


async def test_memory_that_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNvml(FakeGpu("GPU-0000")).install(monkeypatch)
    holder = (*HOLDER[:2], HOLDER[2].format(str(tmp_path / "pid")))
    _, hidden = await examine_gpus(EvaluatorSettings(device="auto"), holder)
    assert not hidden.holds and "NVML shows no memory of process" in hidden.evidence and "hostPID" in hidden.remedy
    _, broken = await examine_gpus(EvaluatorSettings(device="auto"), (sys.executable, "-c", "raise SystemExit(1)"))
    assert not broken.holds and "torch cannot allocate" in broken.evidence


async def test_a_host_without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    for device, essential in (("auto", False), ("cuda", True)):
        (found,) = await examine_gpus(EvaluatorSettings(device=device))
        assert not found.holds and found.essential is essential and "nvidia-ml-py" in found.evidence
    assert await examine_gpus(EvaluatorSettings(device="cpu")) == []
