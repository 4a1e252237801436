"""Who holds too much of a device's memory is ended: real sandboxes and processes, an NVML that is made up."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import pytest
from fake_nvml import FakeGpu, FakeNvml

from kernelevo_evaluator.lanes.memory_watchdog import LOOKS, DeviceMemoryWatchdog
from kernelevo_evaluator.lanes.nvml import NvmlFailed, ProcessMemory
from kernelevo_evaluator.lanes.quiet import Quiet
from kernelevo_sandbox import EndKind, Limits, SandboxSpec, SandboxUnavailable, interpreter_mounts, open_sandbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kernelevo_sandbox import Sandbox, SandboxProcess

GIB = 1 << 30
REFEREE = 1 << 22
"""A pid that no process has."""
CHILD = "import os, time\nos.fork()\nprint('up', flush=True)\ntime.sleep(60)"


@pytest.fixture
def gpu() -> FakeGpu:
    return FakeGpu("GPU-0000", processes={REFEREE: 2 * GIB})


@pytest.fixture
def nvml(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    return FakeNvml(gpu).install(monkeypatch)


@pytest.fixture(params=["bubblewrap", "none"])
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[Sandbox]:
    try:
        found = open_sandbox(request.param)
    except SandboxUnavailable as why:
        pytest.skip(str(why))
    yield found
    await found.close()


@pytest.fixture
async def watchdog(nvml: FakeNvml) -> AsyncIterator[DeviceMemoryWatchdog]:
    found = DeviceMemoryWatchdog("GPU-0000", Quiet(), look_seconds=0.01)
    found.lender = REFEREE
    assert await found.check() == "" and found.guarantee.holds
    yield found
    await found.close()
    assert nvml.opened == 0


async def started(sandbox: Sandbox) -> SandboxProcess:
    """A sandbox of at least two processes."""
    spec = SandboxSpec(
        argv=(sys.executable, "-I", "-S", "-c", CHILD),
        env={},
        limits=Limits(memory_bytes=256 << 20),
        mounts=interpreter_mounts() if sandbox.name != "none" else (),
    )
    process = await sandbox.start(spec)
    async with asyncio.timeout(30):
        while process.output()[0].text().count("up") < 2:
            await asyncio.sleep(0.02)
    return process


async def looked(nvml: FakeNvml, times: int = 3) -> None:
    """Until it was looked at so often from now on."""
    wanted = nvml.looks + times
    async with asyncio.timeout(30):
        while nvml.looks < wanted:
            await asyncio.sleep(0.005)


async def test_a_sandbox_that_holds_too_much_is_ended(
    sandbox: Sandbox, watchdog: DeviceMemoryWatchdog, gpu: FakeGpu, nvml: FakeNvml
) -> None:
    one, other = await started(sandbox), await started(sandbox)
    watchdog.watch(one, 20 * GIB)
    watchdog.watch(other, 20 * GIB)
    pids = one.processes()
    assert len(pids) >= 2 and not set(pids) & set(other.processes())
    # All of its processes count together; the other one's are its own.
    gpu.processes |= {pids[-1]: 15 * GIB, pids[-2]: 5 * GIB, other.processes()[-1]: 20 * GIB}
    await looked(nvml)
    assert not one.ended and not other.ended
    gpu.processes[pids[-1]] = 60 * GIB
    ending = await asyncio.wait_for(one.wait(), 30)
    assert ending.kind is EndKind.OUT_OF_DEVICE_MEMORY
    assert ending.detail == "used 65.0 GiB of the device's memory, of which it may have 20.0 GiB"
    assert one.processes() == () and not other.ended
    await other.kill()


async def test_what_the_referee_holds_is_allowed_on_top(
    sandbox: Sandbox, watchdog: DeviceMemoryWatchdog, gpu: FakeGpu, nvml: FakeNvml
) -> None:
    """Its buffers are mapped in the sandbox, and a driver may count them there."""
    process = await started(sandbox)
    gpu.processes[process.processes()[-1]] = 22 * GIB
    watchdog.watch(process, 20 * GIB)
    await looked(nvml)
    assert not process.ended
    gpu.processes[REFEREE] = GIB
    assert (await asyncio.wait_for(process.wait(), 30)).kind is EndKind.OUT_OF_DEVICE_MEMORY


async def test_memory_that_is_on_its_way_back_is_no_excess(watchdog: DeviceMemoryWatchdog, nvml: FakeNvml) -> None:
    """The referee has let it go, the sandbox is about to."""
    sandbox = open_sandbox("none")
    process = await started(sandbox)
    pid = process.processes()[-1]
    watchdog._limits[process] = 20 * GIB
    for held in (60, 60, 20, 60, 60, 1, 60):
        watchdog._enforce({pid: held * GIB})
    await asyncio.sleep(0.05)
    assert not process.ended
    for _ in range(LOOKS - 1):
        watchdog._enforce({pid: 60 * GIB})
    assert (await asyncio.wait_for(process.wait(), 30)).kind is EndKind.OUT_OF_DEVICE_MEMORY
    await sandbox.close()


async def test_one_that_draws_is_seen_as_well(watchdog: DeviceMemoryWatchdog, gpu: FakeGpu, nvml: FakeNvml) -> None:
    gpu.processes |= {1: GIB, 2: None}
    gpu.drawing = {1: 3 * GIB, 4: GIB}
    meter = ProcessMemory("GPU-0000")
    assert meter.look() == {REFEREE: 2 * GIB, 1: 3 * GIB, 4: GIB}
    gpu.drawing = None  # a device that cannot draw
    assert meter.look() == {REFEREE: 2 * GIB, 1: GIB}
    meter.close()


async def test_nobody_looks_while_nothing_is_watched_and_seldom_while_something_is_timed(
    nvml: FakeNvml, gpu: FakeGpu
) -> None:
    sandbox, quiet = open_sandbox("none"), Quiet()
    watchdog = DeviceMemoryWatchdog("GPU-0000", quiet, look_seconds=0.005, timed_look_seconds=60.0)
    watchdog.lender = REFEREE
    try:
        await watchdog.check()
        before = nvml.looks
        await asyncio.sleep(0.1)
        assert nvml.looks == before
        process = await started(sandbox)
        watchdog.watch(process, GIB)
        await looked(nvml)
        await quiet.begin()
        await asyncio.sleep(0.2)  # the pause that was on when it began
        before = nvml.looks
        gpu.processes[process.processes()[-1]] = 60 * GIB
        await asyncio.sleep(0.2)
        assert nvml.looks == before and not process.ended
        await quiet.end()
    finally:
        await watchdog.close()
        await sandbox.close()


async def test_a_device_whose_memory_cannot_be_told_is_not_watched(nvml: FakeNvml, gpu: FakeGpu) -> None:
    """As in a container with a pid namespace of its own: said at the start, and never taken for a loss."""
    gpu.processes.clear()
    watchdog = DeviceMemoryWatchdog("GPU-0000", Quiet(), look_seconds=0.005)
    watchdog.lender = REFEREE
    assert await watchdog.check() == ""
    guarantee = watchdog.guarantee
    assert not guarantee.holds and not guarantee.essential
    assert str(REFEREE) in guarantee.evidence and "hostPID" in guarantee.remedy
    sandbox = open_sandbox("none")
    try:
        process = await started(sandbox)
        watchdog.watch(process, 1)
        before = nvml.looks
        await asyncio.sleep(0.05)
        assert nvml.looks == before
    finally:
        await sandbox.close()
        await watchdog.close()


async def test_a_watch_that_fails_is_told_once_and_holds_again_after_a_look(
    watchdog: DeviceMemoryWatchdog, nvml: FakeNvml
) -> None:
    sandbox, lost = open_sandbox("none"), []
    watchdog.on_lost = lost.append
    try:
        process = await started(sandbox)
        watchdog.watch(process, GIB)
        await looked(nvml)
        nvml.answers = False
        async with asyncio.timeout(30):
            while not lost:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert len(lost) == 1 and "GPU is lost" in lost[0]
        assert "GPU is lost" in await watchdog.check() and not watchdog.guarantee.holds
        nvml.answers = True
        assert await watchdog.check() == "" and watchdog.guarantee.holds
    finally:
        await sandbox.close()


def test_without_nvml_or_the_device_it_says_so(monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml) -> None:
    with pytest.raises(NvmlFailed, match="GPU-9999"):
        ProcessMemory("GPU-9999")
    assert nvml.opened == 0
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NvmlFailed, match="nvidia-ml-py"):
        ProcessMemory("GPU-0000")
