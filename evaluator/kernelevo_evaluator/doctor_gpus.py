"""What `doctor` says of a host's GPUs: which there are, and whether their memory can be watched from outside a sandbox."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

from kernelevo_evaluator.lanes.gpu import NoGpu, find_gpus
from kernelevo_evaluator.lanes.memory_watchdog import DeviceMemoryWatchdog
from kernelevo_evaluator.lanes.quiet import Quiet
from kernelevo_sandbox import Guarantee

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelevo_evaluator.lanes.gpu import Gpu
    from kernelevo_evaluator.settings import EvaluatorSettings

_START_SECONDS = 120.0
_GIB = 1 << 30
HOLDER = (
    sys.executable,
    "-c",
    "import sys, torch; held = torch.ones(1 << 26, device='cuda'); torch.cuda.synchronize(); "
    "print('up', flush=True); sys.stdin.read()",
)
"""Holds a quarter of a GiB of its device until its standard input ends."""


async def examine_gpus(settings: EvaluatorSettings, holder: Sequence[str] = HOLDER) -> list[Guarantee]:
    """One entry for the GPUs, one for each whose memory was looked at; none where the settings ask for no GPU.

    Args:
        holder: a program that holds memory of the device that its environment names, says "up" once it does, and goes at the
            end of its input.
    """
    if settings.device not in ("auto", "cuda"):
        return []
    try:
        gpus = await asyncio.to_thread(find_gpus)
    except NoGpu as why:
        remedy = "install the driver and `kernelevo[cuda]`; without a GPU candidates run on the processor"
        return [
            Guarantee(name="gpus", holds=False, evidence=str(why), remedy=remedy, essential=settings.device == "cuda")
        ]
    names = [f"{gpu.name} {gpu.memory_bytes / _GIB:.0f} GiB ({gpu.uuid})" for gpu in gpus]
    found = [Guarantee(name="gpus", holds=True, evidence=", ".join(names), essential=False)]
    for gpu in gpus:
        found.append(await _watched(gpu, holder))
    return found


async def _watched(gpu: Gpu, holder: Sequence[str]) -> Guarantee:
    """Whether NVML tells, seen from here, what another process holds."""
    process = await asyncio.create_subprocess_exec(
        *holder,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=os.environ | gpu.environment,
    )
    watchdog = DeviceMemoryWatchdog(gpu.uuid, Quiet())
    try:
        assert process.stdout is not None
        async with asyncio.timeout(_START_SECONDS):
            said = await process.stdout.readline()
        if said.strip() != b"up":
            return Guarantee(
                name=watchdog.guarantee.name,
                holds=False,
                evidence=f"torch cannot allocate memory on {gpu.uuid}",
                remedy="`python -c 'import torch; torch.ones(1, device=\"cuda\")'` says why",
                essential=False,
            )
        watchdog.lender = process.pid
        await watchdog.check()
        return watchdog.guarantee
    except TimeoutError:
        evidence = f"torch did not open {gpu.uuid} within {_START_SECONDS:g} s"
        return Guarantee(name=watchdog.guarantee.name, holds=False, evidence=evidence, essential=False)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await watchdog.close()
