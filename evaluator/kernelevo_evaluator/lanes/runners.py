"""Runners as the server holds them: a sandboxed harness each, warm before it is needed, used once."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.util
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kernelevo_api.types import SandboxEnd, SandboxEnding
from kernelevo_evaluator.channel import AsyncChannel, ChannelError, socket_pair
from kernelevo_evaluator.executor import ExecutorFault
from kernelevo_evaluator.lanes.quiet import Deadline
from kernelevo_evaluator.lanes.tools import MEMORY_BYTES, OUTPUT_BYTES, PROCESSES
from kernelevo_evaluator.languages.toolkit import cuda_root
from kernelevo_evaluator.messages.codec import BUILD_REQUEST_LIMIT, MessageInvalid, encode
from kernelevo_evaluator.messages.runner import Done, OpenDevice, Ready, decode_reply
from kernelevo_sandbox import Ending, EndKind, Limits, Mount, SandboxError, SandboxSpec, interpreter_mounts

if TYPE_CHECKING:
    import socket

    from kernelevo_evaluator.lanes.cores import Cores
    from kernelevo_evaluator.lanes.gpu import Gpu
    from kernelevo_evaluator.lanes.memory_watchdog import DeviceMemoryWatchdog
    from kernelevo_evaluator.lanes.quiet import Quiet
    from kernelevo_evaluator.lanes.tools import Tool
    from kernelevo_evaluator.messages.runner import Reply
    from kernelevo_sandbox import Sandbox, SandboxProcess

CHANNEL_FD = 3
_START_SECONDS = 60.0
TOOL_START_SECONDS = 120.0
"""For a runner to come up, by itself and under a tool."""
_LINGER_SECONDS = 2.0
_REPORT_SECONDS = 30.0
"""For a tool to write what it found once its runner has nothing more to do."""

_ENDS = {
    EndKind.EXITED: SandboxEnd.EXITED,
    EndKind.SIGNALED: SandboxEnd.SIGNALED,
    EndKind.OUT_OF_MEMORY: SandboxEnd.OUT_OF_MEMORY,
    EndKind.OUT_OF_DEVICE_MEMORY: SandboxEnd.OUT_OF_DEVICE_MEMORY,
    EndKind.WALL_TIMEOUT: SandboxEnd.WALL_TIMEOUT,
    EndKind.CPU_TIMEOUT: SandboxEnd.CPU_TIMEOUT,
    EndKind.OUTPUT_LIMIT: SandboxEnd.OUTPUT_LIMIT,
    EndKind.PROCESS_LIMIT: SandboxEnd.PROCESS_LIMIT,
    EndKind.FORBIDDEN_CALL: SandboxEnd.FORBIDDEN_CALL,
    EndKind.KILLED: SandboxEnd.KILLED,
}


def sandbox_ending(ending: Ending) -> SandboxEnding:
    """A sandbox's ending in the words of the contract."""
    return SandboxEnding(
        kind=_ENDS[ending.kind],
        exit_code=ending.exit_code,
        signal=ending.signal,
        detail=ending.detail,
        peak_memory_bytes=ending.peak_memory_bytes,
    )


@dataclass(frozen=True, slots=True)
class RunnerLimits:
    """What one runner may use; runners of equal limits are interchangeable."""

    memory_bytes: int
    processes: int
    output_bytes: int
    temporary_bytes: int
    device_memory_bytes: int | None = field(default=None, compare=False)
    """Kept from outside, so that a runner that stands already can be given another one; `None`: not kept."""
    cpu_seconds: float | None = None
    """Of all its processes, its imports included; `None`: not limited."""


class HeldRunner:
    """One runner in its sandbox. The server speaks with it while its module is loaded; then its socket goes to a referee."""

    def __init__(
        self, process: SandboxProcess, channel: AsyncChannel, sock: socket.socket, *, watched: bool = False
    ) -> None:
        """`watched`: a tool started it, which writes to its streams."""
        self.process = process
        self.channel = channel
        self.watched = watched
        self._socket = sock

    def fileno(self) -> int:
        """The channel's descriptor, to be sent to a referee."""
        return self._socket.fileno()

    def handed_over(self) -> None:
        """The referee has its own copy of the channel: close ours, so that a closed channel is seen at once."""
        self.channel.close()

    async def ending(self) -> Ending:
        """How the runner ended; one that lives on without its channel is ended after a moment."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                return await asyncio.shield(self.process.wait())
        return await self.process.kill()

    async def finish(self) -> str:
        """Let it end by itself, as it does once nobody holds its channel, and return what it wrote; it has half a minute."""
        self.channel.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REPORT_SECONDS):
                await asyncio.shield(self.process.wait())
        ending = await self.process.kill()
        return ending.stdout.text() + "\n" + ending.stderr.text()

    async def kill(self) -> Ending:
        """End it; returns when its processes are gone."""
        self.channel.close()
        return await self.process.kill()


class RunnerPool:
    """Warm spares: torch imported before the job arrives. Replaced off the result's path, frozen while a timing is on."""

    def __init__(
        self,
        sandbox: Sandbox,
        quiet: Quiet,
        *,
        cores: Cores,
        standard: RunnerLimits,
        spares: int,
        gpu: Gpu | None = None,
        watchdog: DeviceMemoryWatchdog | None = None,
    ) -> None:
        """`standard`: the limits of the spares; a runner of other limits starts cold. `gpu`: the one that runners may use, whose
        memory `watchdog` keeps."""
        self._sandbox = sandbox
        self._quiet = quiet
        self._cores = cores
        self._gpu = gpu
        self.watchdog = watchdog
        self._standard = standard
        self._wanted = spares
        self._spares: list[HeldRunner] = []
        self._starting: set[asyncio.Task[None]] = set()
        # A candidate may have the toolkit's compiler at hand (PyCUDA does).
        toolkit = cuda_root() if gpu is not None else None
        tools = (Mount(source=toolkit, target=str(toolkit)),) if toolkit is not None else ()
        self._mounts = (*runner_mounts(), *tools)
        self._closed = False

    async def take(
        self, limits: RunnerLimits | None = None, label: str = "candidate", tool: Tool | None = None
    ) -> HeldRunner:
        """A ready runner, warm where there is one of these limits. It counts as background until a lane takes it.

        Args:
            tool: what to start it under; it is cold then, and has more of everything, since the tool needs it.

        Raises:
            ExecutorFault: no runner could be started.
        """
        if tool is None:
            runner = await self._ready(limits, label)
        else:
            limits = limits or self._standard
            runner = await self._start(limits, label, tool)
        allowed = (limits or self._standard).device_memory_bytes
        if self.watchdog is not None and allowed is not None:
            self.watchdog.watch(runner.process, allowed if tool is None else 2 * allowed + MEMORY_BYTES)
        return runner

    async def _ready(self, limits: RunnerLimits | None, label: str) -> HeldRunner:
        if limits is None or limits == self._standard:
            while True:
                if not self._spares and self._starting:
                    await asyncio.wait(self._starting, return_when=asyncio.FIRST_COMPLETED)
                    if not self._spares:
                        break
                if not self._spares:
                    break
                spare = self._spares.pop()
                if not spare.process.ended:
                    self.refill()
                    return spare
                await self.forget(spare)
            self.refill()
        return await self._start(limits or self._standard, label)

    @property
    def cpu_seconds(self) -> float | None:
        """Processor time that a candidate's runner may use; `None`: not limited."""
        return self._standard.cpu_seconds

    @property
    def warm(self) -> int:
        """Spares that are ready."""
        return sum(not spare.process.ended for spare in self._spares)

    def refill(self) -> None:
        """Start what is missing, in the background."""
        while not self._closed and len(self._spares) + len(self._starting) < self._wanted:
            task = asyncio.create_task(self._start_spare())
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)

    async def _start_spare(self) -> None:
        try:
            runner = await self._start(self._standard, "spare")
        except ExecutorFault:
            return  # the next `take` starts one itself, and reports what is wrong
        if self._closed:
            await self.forget(runner)
        else:
            self._spares.append(runner)

    async def _start(self, limits: RunnerLimits, label: str, tool: Tool | None = None) -> HeldRunner:
        ours, theirs = socket_pair()
        cores = self._cores
        process: SandboxProcess | None = None
        try:
            process = await self._sandbox.start(
                SandboxSpec(
                    argv=(
                        *(tool.argv if tool is not None else ()),
                        sys.executable,
                        "-P",
                        "-m",
                        "kernelevo_evaluator.runner",
                        str(CHANNEL_FD),
                        str(len(cores.all)),
                        "cuda" if self._gpu is not None else "cpu",
                        "-" if cores.timed is None else str(cores.timed),
                        ",".join(str(core) for core in sorted(cores.background)),
                        "watched" if tool is not None else "-",
                    ),
                    env=runner_environment(len(cores.all), self._gpu) | dict(tool.environment if tool else {}),
                    limits=_sandbox_limits(limits, tool),
                    fds={CHANNEL_FD: theirs.fileno()},
                    mounts=(*self._mounts, *(tool.mounts if tool is not None else ())),
                    devices=self._gpu.nodes if self._gpu is not None else (),
                    cpus=cores.all,
                    label=label,
                )
            )
            channel = AsyncChannel(ours, BUILD_REQUEST_LIMIT)
            runner = HeldRunner(process, channel, ours, watched=tool is not None)
            if not cores.background_apart:
                await self._quiet.add(process)
            if not isinstance(reply := await self._answer(runner), Ready):
                raise ExecutorFault(f"a runner began with {type(reply).__name__}")
            if cores.background_apart:
                # It imported torch on cores of the background's; from here on it touches what is timed.
                await self._quiet.add(process)
            if self._gpu is not None:
                await channel.send(encode(OpenDevice(nonce=0)))
                if not isinstance(reply := await self._answer(runner), Done):
                    raise ExecutorFault(f"a runner cannot open the GPU: {reply}")
            return runner
        except BaseException as error:
            ours.close()
            if process is not None:
                await self._quiet.remove(process, thaw=False)
                await process.kill()
            if isinstance(error, SandboxError):
                raise ExecutorFault(f"no runner could be started: {error}") from error
            raise
        finally:
            theirs.close()

    async def _answer(self, runner: HeldRunner) -> Reply:
        try:
            seconds = TOOL_START_SECONDS if runner.watched else _START_SECONDS
            data = await Deadline(self._quiet, seconds).result(asyncio.create_task(runner.channel.receive()))
            return decode_reply(data)
        except (ChannelError, MessageInvalid, TimeoutError) as error:
            ending = await runner.kill()
            stderr = ending.stderr.text()[-2000:]
            raise ExecutorFault(
                f"a runner did not come up ({error or 'timeout'}; {ending.kind.value}, code {ending.exit_code}): {stderr}"
            ) from error

    async def discard(self, runner: HeldRunner) -> Ending:
        """End a runner, wherever it is; returns when its processes are gone.

        Raises:
            SandboxBroken: they are, and nobody knows why.
        """
        await self._quiet.remove(runner.process, thaw=False)
        return await runner.kill()

    async def forget(self, runner: HeldRunner) -> None:
        """End a runner of which nobody asks how it ended: an engine or a launcher may have died under it long ago."""
        with contextlib.suppress(SandboxError):
            await self.discard(runner)

    async def close(self) -> None:
        """End every spare."""
        self._closed = True
        for task in list(self._starting):
            task.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        await asyncio.gather(*(self.forget(spare) for spare in self._spares))
        self._spares.clear()
        if self.watchdog is not None:
            await self.watchdog.close()


def _sandbox_limits(limits: RunnerLimits, tool: Tool | None) -> Limits:
    """A runner's own limits, and on top of them what a tool around it takes."""
    return Limits(
        memory_bytes=limits.memory_bytes + (MEMORY_BYTES if tool is not None else 0),
        processes=limits.processes + (PROCESSES if tool is not None else 0),
        output_bytes=limits.output_bytes + (OUTPUT_BYTES if tool is not None else 0),
        tmpfs_bytes=limits.temporary_bytes + (OUTPUT_BYTES if tool is not None else 0),
        # A tool takes many times what the candidate does.
        cpu_seconds=limits.cpu_seconds if tool is None else None,
    )


def runner_environment(threads: int, gpu: Gpu | None = None) -> dict[str, str]:
    """The whole environment of a runner."""
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": "/tmp",
        "TMPDIR": "/tmp",
        "LC_ALL": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONNOUSERSITE": "1",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        # Large tensors come from the heap and stay there: a fresh mapping for each costs page faults that swing by the double.
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
        "MALLOC_TOP_PAD_": str(64 << 20),
        "PYTHONPATH": os.pathsep.join(str(path) for path in _outside()[1]),
        "USER": "kernelevo",
        "LOGNAME": "kernelevo",
        "TORCHINDUCTOR_CACHE_DIR": "/tmp/inductor",
        # 156 MB of precompiled headers, for the few kernels of one problem: more than fits there.
        "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
        "TRITON_CACHE_DIR": "/tmp/triton",
    }
    return environment | (gpu.environment if gpu is not None else {})


def runner_mounts() -> tuple[Mount, ...]:
    """What a runner must see: the interpreter, and those of its packages that lie elsewhere (editable install, PYTHONPATH)."""
    return (*interpreter_mounts(), *(Mount(source=path, target=str(path)) for path in _outside()[0]))


def shown_to_runners(path: Path) -> Path | None:
    """The folder that every sandbox sees and that `path` lies in; `None` where it lies in none."""
    place = path.absolute().resolve()
    shown = (Path("/usr"), *(mount.source.resolve() for mount in runner_mounts()))
    return next((folder for folder in shown if place.is_relative_to(folder)), None)


@functools.cache
def _outside() -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Packages of a runner that lie outside the interpreter's own folders: what to mount, and what to put on its path."""
    inside = [mount.source.resolve() for mount in interpreter_mounts()] + [Path("/usr")]
    mounts: dict[Path, None] = {}
    paths: dict[Path, None] = {}
    for name in ("kernelevo_evaluator", "msgspec", "numpy", "torch", "triton", "cuda", "pycuda"):
        spec = importlib.util.find_spec(name)
        for location in (spec.submodule_search_locations if spec is not None else None) or ():
            package = Path(location).resolve()
            if any(package.is_relative_to(folder) for folder in inside):
                continue
            # Of a folder of installed packages all is needed (a package's libraries lie beside it); of ours the package alone.
            mounts[package if name == "kernelevo_evaluator" else package.parent] = None
            paths[package.parent] = None
    return tuple(mounts), tuple(paths)


def usable_cpus() -> frozenset[int]:
    """Cores that this process may use."""
    return frozenset(os.sched_getaffinity(0))
