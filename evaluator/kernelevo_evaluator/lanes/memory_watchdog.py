"""The limit on a device's memory. No control group holds it: this looks who has how much, and ends a sandbox that has too much.

A look costs the driver some bookkeeping and touches no engine of the device; it runs in a thread. While something is timed on
the lane, looks are twenty times rarer: a block of calls of some milliseconds hardly ever meets one, and what a candidate takes
meanwhile is found at the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Protocol

import structlog

from kernelevo_evaluator.lanes.nvml import NvmlFailed, ProcessMemory
from kernelevo_sandbox import EndKind, Guarantee, SandboxError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelevo_evaluator.lanes.quiet import Quiet
    from kernelevo_sandbox import SandboxProcess

_log = structlog.get_logger("kernelevo.evaluator")

LOOK_SECONDS = 0.1
"""Between two looks while something is watched and nothing is timed."""
TIMED_LOOK_SECONDS = 2.0
"""The same while something is timed."""
LOOKS = 3
"""So many looks in a row must find too much. Memory that the referee takes back is gone from what it lends at once, and from the
sandbox, to which some drivers count it as well, only when that has let it go: seen on an H200, where a reference seemed to hold
7.5 GiB more than it did."""
_SHARE = 20.0
"""A look is followed by a pause of at least this many times its duration."""
_FAILURES = 5
"""So many looks in a row fail before the lane is given up."""
_GIB = 1 << 30
GUARANTEE = "device_memory_limit"


class Meter(Protocol):
    """`lanes.nvml.ProcessMemory`, as far as it is used here."""

    def look(self) -> dict[int, int]:
        """Bytes of the device's memory by pid."""

    def close(self) -> None:
        """Give it back."""


class DeviceMemoryWatchdog:
    """Watches the sandboxes of one lane. Belongs to one event loop."""

    def __init__(
        self,
        uuid: str,
        quiet: Quiet,
        *,
        open_meter: Callable[[str], Meter] = ProcessMemory,
        look_seconds: float = LOOK_SECONDS,
        timed_look_seconds: float = TIMED_LOOK_SECONDS,
    ) -> None:
        """`uuid`: of the GPU or MIG instance that the lane has."""
        self._uuid = uuid
        self._quiet = quiet
        self._open_meter = open_meter
        self._look_seconds = look_seconds
        self._timed_look_seconds = timed_look_seconds
        self._meter: Meter | None = None
        self._limits: dict[SandboxProcess, int] = {}
        self._over: dict[SandboxProcess, int] = {}
        """Looks in a row that found too much."""
        self._looking: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._failures = 0
        self._why_not = "nobody has looked yet"
        self._held_once = False
        self.lender: int | None = None
        """Pid of the referee. What it holds is allowed to each sandbox on top of its limit: its buffers are mapped there, and a
        driver may count them there as well."""
        self.on_lost: Callable[[str], None] = lambda reason: None
        """Called once when looks fail that had worked."""

    async def check(self) -> str:
        """Look whether the device's memory can be watched: NVML must tell what the lender holds. Why not; empty: it can be.

        What cannot be watched at the first check is not watched later, and not missed.
        """
        try:
            used = await asyncio.to_thread(self._used)
        except NvmlFailed as failure:
            self._why_not = str(failure)
        else:
            known = self.lender is None or used.get(self.lender, 0) > 0
            self._why_not = "" if known else f"NVML shows no memory of process {self.lender}, which has the device open"
        if not self._why_not:
            self._held_once = True
            self._failures = 0
        return self._why_not if self._held_once else ""

    @property
    def guarantee(self) -> Guarantee:
        """What there is to say of it to whoever asks what this host guarantees."""
        return Guarantee(
            name=GUARANTEE,
            holds=not self._why_not,
            evidence=self._why_not
            or f"NVML tells what each process holds of {self._uuid}; it is looked at from outside",
            remedy="install nvidia-ml-py, and run the evaluator in the host's pid namespace (`--pid host`, `hostPID`); without "
            "that a candidate can fill its device's memory while it is evaluated",
            essential=False,
        )

    def watch(self, process: SandboxProcess, limit_bytes: int) -> None:
        """From now on `process` is ended (`EndKind.OUT_OF_DEVICE_MEMORY`) once it holds more than this of the device."""
        if not self._held_once:
            return
        self._limits[process] = limit_bytes
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._watch(), name=f"memory of {self._uuid}")

    async def _watch(self) -> None:
        """Until nothing is left that is watched."""
        while True:
            for process in [process for process in self._limits if process.ended]:
                del self._limits[process]
                self._over.pop(process, None)
            if not self._limits:
                return
            began = time.monotonic()
            try:
                used = await asyncio.to_thread(self._used)
            except NvmlFailed as failure:
                self._failed(failure)
            else:
                self._failures = 0
                self._enforce(used)
            taken = time.monotonic() - began
            pause = self._timed_look_seconds if self._quiet.timing and not self._over else self._look_seconds
            await asyncio.sleep(max(pause, _SHARE * taken))

    def _used(self) -> dict[int, int]:
        if self._meter is None:
            self._meter = self._open_meter(self._uuid)
        return self._meter.look()

    def _enforce(self, used: dict[int, int]) -> None:
        lent = used.get(self.lender, 0) if self.lender is not None else 0
        for process, limit in list(self._limits.items()):
            held = sum(used.get(pid, 0) for pid in process.processes())
            if held <= limit + lent:
                self._over.pop(process, None)
                continue
            self._over[process] = self._over.get(process, 0) + 1
            if self._over[process] >= LOOKS:
                del self._limits[process], self._over[process]
                detail = (
                    f"used {held / _GIB:.1f} GiB of the device's memory, of which it may have {limit / _GIB:.1f} GiB"
                )
                task = asyncio.create_task(_end(process, detail))
                self._ending.add(task)
                task.add_done_callback(self._ending.discard)

    def _failed(self, failure: NvmlFailed) -> None:
        self._failures += 1
        if self._failures == _FAILURES:
            self._why_not = str(failure)
            _log.error("the device's memory cannot be watched any more", device=self._uuid, reason=str(failure))
            self.on_lost(str(failure))

    async def close(self) -> None:
        """Look no further."""
        tasks = [*self._ending, *([self._looking] if self._looking is not None else [])]
        if self._looking is not None:
            self._looking.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._meter is not None:
            self._meter.close()
            self._meter = None


async def _end(process: SandboxProcess, detail: str) -> None:
    # Whoever waits for its end is told if that cannot be had.
    with contextlib.suppress(SandboxError):
        await process.kill(EndKind.OUT_OF_DEVICE_MEMORY, detail)
