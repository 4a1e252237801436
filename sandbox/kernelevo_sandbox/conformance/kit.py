"""What every check works with: a backend and a Python to run in it, the registry of checks, and ways to look from outside."""

from __future__ import annotations

import asyncio
import contextlib
import json
import mmap
import os
import struct
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kernelevo_sandbox.contract import Ending, EndKind, Limits, Mount, Sandbox, SandboxProcess, SandboxSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping

MEMORY = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Kit:
    """A backend, and a Python that can run inside it."""

    sandbox: Sandbox
    python: str = sys.executable
    mounts: tuple[Mount, ...] = ()
    environment: Mapping[str, str] = field(default_factory=lambda: {"LC_ALL": "C.UTF-8"})

    def spec(self, code: str, *, fds: Mapping[int, int] | None = None, **changes: Any) -> SandboxSpec:
        """A spec that runs Python source; further arguments are fields of `SandboxSpec` or of `Limits`."""
        ours = {name: changes.pop(name) for name in ("env", "cpus", "nice", "label", "mounts") if name in changes}
        limits = Limits(**{"memory_bytes": MEMORY, "wall_seconds": 30.0, **changes})
        mounts = (*self.mounts, *ours.pop("mounts", ()))
        env = ours.pop("env", self.environment)
        argv = (self.python, "-I", "-S", "-c", code)
        return SandboxSpec(argv=argv, env=env, limits=limits, fds=fds or {}, mounts=mounts, **ours)

    async def run(self, code: str, **changes: Any) -> Ending:
        """Run Python source to its end."""
        process = await self.sandbox.start(self.spec(code, **changes))
        return await process.wait()

    async def report(self, code: str, **changes: Any) -> Any:
        """What Python source prints, as JSON; it must end well."""
        ending = await self.run("import json, os, sys\n" + code, **changes)
        assert ending.kind is EndKind.EXITED, told(ending)
        assert ending.exit_code == 0, told(ending)
        return json.loads(ending.stdout.text())

    @contextlib.asynccontextmanager
    async def running(self, code: str, **changes: Any) -> AsyncIterator[SandboxProcess]:
        """A started program, killed at the end."""
        process = await self.sandbox.start(self.spec(code, **changes))
        try:
            yield process
        finally:
            await process.kill()


CHECKS: dict[str, Callable[[Kit], Awaitable[None]]] = {}
"""Every check by name."""
ISOLATION: set[str] = set()
"""Those that a backend without isolation cannot pass, and must not pretend to."""


def check(function: Callable[[Kit], Awaitable[None]]) -> Callable[[Kit], Awaitable[None]]:
    """Register a check."""
    CHECKS[function.__name__] = function
    return function


def isolation(function: Callable[[Kit], Awaitable[None]]) -> Callable[[Kit], Awaitable[None]]:
    """Register a check that only isolation can pass."""
    ISOLATION.add(function.__name__)
    return check(function)


def told(ending: Ending) -> str:
    """An ending, as an assertion shows it."""
    return f"{ending.kind} {ending.exit_code} {ending.signal} {ending.detail}: {ending.stderr.text()[-1000:]}"


@contextlib.contextmanager
def closing(*fds: int) -> Iterator[tuple[int, ...]]:
    """Descriptors that are closed at the end, unless they are already."""
    try:
        yield fds
    finally:
        for fd in fds:
            with contextlib.suppress(OSError):
                os.close(fd)


async def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait until something is so.

    Raises:
        TimeoutError: it did not become so in time.
    """
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  what is awaited is another process
            await asyncio.sleep(0.005)


async def readable(fd: int, seconds: float = 10.0) -> bytes:
    """One read from a pipe, without holding up the loop."""
    os.set_blocking(fd, False)
    async with asyncio.timeout(seconds):
        while True:
            try:
                return os.read(fd, 1 << 16)
            except BlockingIOError:
                await asyncio.sleep(0.005)


class Counter:
    """A memfd that a program counts up in: progress that can be seen from outside without its help."""

    CODE = "import mmap, os\nm = mmap.mmap(5, 4096)\nc = memoryview(m).cast('Q')\nwhile True: c[0] += 1"

    def __enter__(self) -> Counter:
        self.fd = os.memfd_create("counter")
        os.ftruncate(self.fd, 4096)
        self._map = mmap.mmap(self.fd, 4096)
        return self

    def __exit__(self, *_: object) -> None:
        self._map.close()
        os.close(self.fd)

    @property
    def value(self) -> int:
        """The count now."""
        return int(struct.unpack_from("Q", self._map)[0])

    async def moving(self) -> None:
        """Wait until it has counted on."""
        seen = self.value
        await eventually(lambda: self.value > seen)
