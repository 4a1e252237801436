"""What every sandbox backend promises, and the value objects it speaks in.

A command that failed is a result (`Ending`); a sandbox that broke is an exception (`SandboxError`). One pure function,
`kernelevo_sandbox.classify.classify`, tells them apart from the backend's evidence.

    SandboxError
    ├── SandboxUnavailable   this host cannot isolate: says what is missing and how to get it
    └── SandboxBroken        the backend failed while it held a process: our fault, never the candidate's
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kernelevo_sandbox.freezer import Freezer


class SandboxError(Exception):
    """Root of what this package raises."""


class SandboxUnavailable(SandboxError):
    """This host cannot give the isolation that was asked for; the message says what is missing and how to get it."""


class SandboxBroken(SandboxError):
    """The backend failed while starting or holding a process. Never the sandboxed program's fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one sandbox may use. Bytes and seconds. `None` means that the caller keeps this limit itself."""

    memory_bytes: int
    """Resident memory, tmpfs and memfds together where a cgroup counts them (`Ending.memory_enforced_by` says who did)."""
    processes: int = 64
    """Processes and threads together."""
    open_files: int = 256
    file_size_bytes: int = 256 << 20
    """Largest single file, a memfd included (RLIMIT_FSIZE)."""
    tmpfs_bytes: int = 64 << 20
    """Size of the private /tmp."""
    output_bytes: int = 1 << 20
    """stdout and stderr together; beyond it the sandbox is killed (`OUTPUT_LIMIT`)."""
    wall_seconds: float | None = None
    """Counted from `start`, not while frozen."""
    cpu_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A host path that is visible inside, read-only."""

    source: Path
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """One process to run in isolation.

    `argv[0]` is an absolute path inside. `env` is the whole environment: nothing is inherited (a backend may add PWD, the
    working folder, which is /tmp where that is private). `fds` maps the number inside to the caller's descriptor; no other
    descriptor crosses, except a stdin at end-of-file, and stdout and stderr, which the backend captures.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    limits: Limits
    fds: Mapping[int, int] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[Path, ...] = ()
    """Device nodes that are usable inside, at the same path (`kernelevo_sandbox.gpu.nvidia_devices` lists a GPU's). With any
    of them, all of /sys is visible read-only: drivers look up buses and topology there."""
    cpus: frozenset[int] | None = None
    """Cores the whole tree is pinned to; `None`: all that the caller may use."""
    nice: int = 0
    label: str = ""
    """For logs, and for finding leftovers of an earlier life: [a-z0-9-], at most 40 characters."""


class EndKind(enum.Enum):
    """How a sandboxed process ended."""

    EXITED = "exited"
    SIGNALED = "signaled"
    OUT_OF_MEMORY = "out_of_memory"
    OUT_OF_DEVICE_MEMORY = "out_of_device_memory"
    """By its owner, who watches a device's memory: no backend holds that."""
    WALL_TIMEOUT = "wall_timeout"
    CPU_TIMEOUT = "cpu_timeout"
    OUTPUT_LIMIT = "output_limit"
    PROCESS_LIMIT = "process_limit"
    """Where nothing refuses a process too many, all are ended."""
    FORBIDDEN_CALL = "forbidden_call"
    """Killed by the seccomp filter (SIGSYS)."""
    KILLED = "killed"
    """By its owner: cancelled, or no longer needed."""


class MemoryEnforcement(enum.Enum):
    """Who holds the memory limit on this host."""

    CGROUP_V2 = "cgroup_v2"
    CGROUP_V1 = "cgroup_v1"
    WATCHDOG = "watchdog"
    """A poller that sums the tree's proportional memory and kills: a burst between two polls can overshoot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """The head and tail of one output stream; `total_bytes` says how much was written in all."""

    head: bytes = b""
    tail: bytes = b""
    total_bytes: int = 0

    def text(self) -> str:
        """The stream as text, with a line that says how much was cut, if any."""
        cut = self.total_bytes - len(self.head) - len(self.tail)
        middle = f"\n… {cut} bytes cut …\n".encode() if cut > 0 else b""
        return (self.head + middle + self.tail).decode("utf-8", "backslashreplace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a sandbox ended and what it used. A statement of the backend, from evidence outside the sandbox."""

    kind: EndKind
    exit_code: int | None = None
    signal: int | None = None
    detail: str = ""
    stdout: Captured = field(default_factory=Captured)
    stderr: Captured = field(default_factory=Captured)
    wall_seconds: float = 0.0
    cpu_seconds: float | None = None
    peak_memory_bytes: int | None = None
    memory_enforced_by: MemoryEnforcement = MemoryEnforcement.WATCHDOG


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """One fact about this host's isolation, found by trying it, not by reading a version."""

    name: str
    """E.g. `no_network`, `unprivileged_uid`, `memory_limit`, `freeze`."""
    holds: bool
    evidence: str
    """What was tried and what happened."""
    remedy: str = ""
    """What a person can do about it where it does not hold."""
    essential: bool = True
    """The evaluator refuses to start where an essential guarantee does not hold."""


class SandboxProcess(ABC):
    """A running sandbox. Whoever started it must `await kill()` or see `wait()` return: both end the whole tree."""

    @abstractmethod
    async def wait(self) -> Ending:
        """Wait for the end of the whole tree. May be awaited by several tasks, and again after the end."""

    @abstractmethod
    async def kill(self, reason: EndKind = EndKind.KILLED, detail: str = "") -> Ending:
        """End the whole tree, frozen or not, and wait until no process of it is left. Idempotent: the first reason counts.

        Args:
            reason: the kind of its ending, where its owner keeps a limit himself.
            detail: what the ending says of it.
        """

    @abstractmethod
    def processes(self) -> tuple[int, ...]:
        """Its processes just now, as the caller's pid namespace numbers them; none after the end."""

    @abstractmethod
    async def freeze(self) -> None:
        """Stop every process of the tree; returns when none of them can run. Idempotent; a no-op after the end."""

    @abstractmethod
    async def thaw(self) -> None:
        """Undo `freeze`. Idempotent; a no-op after the end."""

    def freezer(self) -> Freezer | None:
        """What a trusted process freezes and thaws the tree with that cannot wait for this one to be scheduled; `None` where
        there is nothing such.

        The descriptors stay this object's; the end of the tree works as ever. Whoever uses them freezes the tree here first: its
        time does not count until it is thawed here.
        """
        return None

    @property
    @abstractmethod
    def ended(self) -> bool:
        """Whether the tree is gone."""

    @abstractmethod
    def output(self) -> tuple[Captured, Captured]:
        """stdout and stderr so far."""


class Sandbox(ABC):
    """A way to isolate processes on this host. Backends differ in how, never in what the conformance kit checks."""

    name: str

    @abstractmethod
    async def start(self, spec: SandboxSpec) -> SandboxProcess:
        """Start `spec` isolated. The caller keeps its own copies of `spec.fds` and closes them itself.

        Raises:
            SandboxUnavailable: this host cannot isolate.
            SandboxBroken: the backend failed to start the process.
        """

    @abstractmethod
    async def probe(self, cpus: frozenset[int] | None = None) -> tuple[Guarantee, ...]:
        """Try what this backend promises on this host, and say what holds. May be called again at any time.

        `cpus`: cores to do it on; `None`: all that the caller may use.

        Raises:
            SandboxError: nothing can be started at all; says why.
        """

    @abstractmethod
    async def sweep(self) -> int:
        """Remove what an earlier life left behind (processes, cgroups, folders); returns how many things were removed."""

    @abstractmethod
    async def close(self) -> None:
        """Kill every sandbox that is still alive and release the backend's resources."""
