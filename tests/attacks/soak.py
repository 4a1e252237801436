"""Hostile programs in a row, and what of the host is not where it was afterwards."""

from __future__ import annotations

import asyncio
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attack import Attack, Result
from attacking import run
from attacks import ATTACKS

from kernelevo_sandbox import owners
from kernelevo_sandbox.watchdog import descendants

if TYPE_CHECKING:
    from kernelevo_sandbox import Sandbox

SLACK = {
    "processes": 4,
    "mounts": 8,
    "groups": 24,
    "descriptors": 40,
    "files": 2,
    "memory_bytes": 48 << 20,
    "device_memory_bytes": 1 << 30,
}
"""What a spare sandbox (with a context on a device), a client's open connections and an allocator's arenas may differ by."""
_SETTLE_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Host:
    """Counts of what sandboxes could leave behind."""

    processes: int
    mounts: int
    groups: int
    descriptors: int
    files: int
    memory_bytes: int
    device_memory_bytes: int = 0
    """Of all GPUs that NVML shows, whoever holds it; 0 where there is none."""

    @classmethod
    def look(cls) -> Host:
        """The counts now: this process's descendants, descriptors and memory; the host's mounts, groups and files of ours."""
        groups = Path("/sys/fs/cgroup")
        own = [*groups.rglob(f"kernelevo-{owners.mark()}-*"), *groups.glob("*/docker/*/"), *groups.glob("docker/*/")]
        return cls(
            processes=len(descendants(os.getpid())),
            mounts=len(Path("/proc/self/mountinfo").read_text().splitlines()),
            groups=len(own),
            descriptors=len(list(Path("/proc/self/fd").iterdir())),
            files=len(
                [*Path(tempfile.gettempdir()).glob("attack-*"), *Path(tempfile.gettempdir()).glob(f"*{owners.mark()}*")]
            ),
            memory_bytes=int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
        )


async def soak(sandbox: Sandbox, count: int) -> tuple[Host, Host, list[str]]:
    """Run `count` attacks in turn; the host before and after, and attacks that were not contained.

    The host is given some seconds to settle: an engine removes a container's record after its processes are gone.
    """
    attacks = [attack for attack in ATTACKS if isinstance(attack, Attack) or not attack.cuda]
    # One that shares no factor with their number: a short soak sees every kind.
    step = next(step for step in (7, 11, 13) if len(attacks) % step)
    escaped = []
    for attack in attacks[:4]:  # what is made once, and kept
        await run(sandbox, attack)
    await asyncio.sleep(2.0)
    before = Host.look()
    for number in range(count):
        attack = attacks[number * step % len(attacks)]
        outcome = await run(sandbox, attack)
        if outcome.result is Result.NOT_CONTAINED:
            escaped.append(f"{attack.name}: {outcome.evidence}")
    waited = 0.0
    while left(before, after := Host.look()) and waited < _SETTLE_SECONDS:
        await asyncio.sleep(0.5)
        waited += 0.5
    return before, after, escaped


def device_memory_bytes() -> int:
    """What is taken of the memory of this host's GPUs, as NVML tells it; 0 without one."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no library, or no driver
        return 0
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return sum(int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) for handle in handles)
    finally:
        pynvml.nvmlShutdown()


def left(before: Host, after: Host) -> dict[str, int]:
    """What is beyond the slack, by how much it grew."""
    one, two = asdict(before), asdict(after)
    return {name: two[name] - one[name] for name, slack in SLACK.items() if two[name] - one[name] > slack}
