"""Building what a candidate hands to `load_inline`, in a sandbox without any device, kept by content.

Equal requests at once are one build. Whoever waits for it waits within a limit of their own, which counts from the moment the
build runs; it ends with the last who waits, so it may take as long as the largest limit that was asked for.
"""

from __future__ import annotations

import asyncio
import os
import shlex
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from kernelevo_api.types import CapturedText, Diagnostic, KernelResources, SandboxEnd, SandboxEnding
from kernelevo_evaluator.executor import ExecutorFault
from kernelevo_evaluator.lanes.quiet import Deadline
from kernelevo_evaluator.lanes.runners import runner_mounts, sandbox_ending
from kernelevo_evaluator.languages.artefacts import Artefacts, Notes
from kernelevo_evaluator.languages.cpp import cpp_recipe
from kernelevo_evaluator.languages.cuda import cuda_recipe
from kernelevo_evaluator.languages.diagnostics import captured, diagnostics, kernel_resources, without_assembler_talk
from kernelevo_evaluator.languages.recipes import OBJECT, Unsupported
from kernelevo_evaluator.languages.toolkit import cpp_compiler
from kernelevo_sandbox import EndKind, Limits, Mount, SandboxSpec

if TYPE_CHECKING:
    from kernelevo_evaluator.lanes.quiet import Quiet
    from kernelevo_evaluator.languages.recipes import Recipe
    from kernelevo_evaluator.messages.runner import BuildRequest
    from kernelevo_sandbox import Ending, Sandbox, SandboxProcess

FILES_FD, OBJECT_FD = 4, 5
OBJECT_BYTES = 64 << 20
"""Largest shared object that is taken out of a build."""
# Where nothing isolates, /tmp is everybody's, and two builds at once would write over each other's files.
_OWN_FOLDER = 'work=$(mktemp -d) || exit\ntrap \'rm -rf "$work"\' EXIT\ncd "$work" || exit\n'


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult:
    """One build: the shared object, or why there is none."""

    digest: str
    path: Path | None
    """The object in the cache; `None` where the build failed."""
    cached: bool = False
    wall_seconds: float = 0.0
    waited_seconds: float = 0.0
    """Until a worker was free: ours, and in no limit of a candidate."""
    cpu_seconds: float | None = None
    peak_memory_bytes: int | None = None
    log: CapturedText | None = None
    diagnostics: tuple[Diagnostic, ...] = ()
    kernels: tuple[KernelResources, ...] = ()
    """What each kernel uses on the device; of CUDA sources alone."""
    ending: SandboxEnding | None = None
    """Where the build did not end by itself with success or a compiler's error."""

    @property
    def log_text(self) -> str:
        """The log as the candidate's author reads it."""
        if self.log is None:
            return ""
        return self.log.head + (f"\n… {self.log.total_bytes} bytes in all …\n{self.log.tail}" if self.log.tail else "")


@dataclass(slots=True)
class _Flight:
    """A build that is on, for all who wait for it."""

    task: asyncio.Task[BuildResult] | None = None
    waiters: int = 0
    started: asyncio.Event = field(default_factory=asyncio.Event)
    """A worker took it."""
    given_up: asyncio.Event = field(default_factory=asyncio.Event)
    """Everybody's limit is used up."""


class Builder:
    """Builds shared objects, a bounded number at a time, and keeps them under the digest of all that went into them."""

    def __init__(
        self,
        sandbox: Sandbox,
        quiet: Quiet,
        folder: Path,
        workers: int,
        cpus: frozenset[int],
        architecture: str = "",
        cpu_seconds: float | None = None,
    ) -> None:
        """
        Args:
            architecture: of the device that CUDA is built for, e.g. "sm_90"; empty: there is none.
            cpu_seconds: of a build's processes together; `None`: not limited.
        """
        self._sandbox = sandbox
        self._quiet = quiet
        self._artefacts = Artefacts(folder)
        self._workers = asyncio.Semaphore(workers)
        self._cpus = cpus
        self._architecture = architecture
        self._cpu_seconds = cpu_seconds
        self._flights: dict[tuple[str, int], _Flight] = {}

    @property
    def available(self) -> bool:
        """Whether there is a compiler."""
        return cpp_compiler() is not None

    def recipe(self, request: BuildRequest) -> Recipe:
        """How this host builds the request.

        Raises:
            Unsupported: it does not.
        """
        if not request.cuda_sources and not request.with_cuda:
            return cpp_recipe(request)
        if not self._architecture:
            raise Unsupported("CUDA sources cannot be built on this host: it has no CUDA device")
        return cuda_recipe(request, self._architecture)

    async def build(self, request: BuildRequest, seconds: float, memory_bytes: int) -> BuildResult:
        """Build, or take from the cache.

        Args:
            seconds: for which this caller waits, from the moment the build runs, by the clock that stands still during timings.
            memory_bytes: of the build with all of its processes.

        Raises:
            SandboxError: ours.
            ExecutorFault: ours: what was built cannot be kept.
        """
        try:
            recipe = await asyncio.to_thread(self.recipe, request)
        except Unsupported as error:
            return BuildResult(digest="", path=None, log=captured(str(error).encode()))
        digest = recipe.digest
        found = await asyncio.to_thread(self._artefacts.find, digest)
        if found is not None:
            path, notes = found
            return BuildResult(
                digest=digest, path=path, cached=True, diagnostics=notes.diagnostics, kernels=notes.kernels
            )
        return await self._join((digest, memory_bytes), recipe, seconds)

    async def _join(self, key: tuple[str, int], recipe: Recipe, seconds: float) -> BuildResult:
        """Wait for the build of this key with all others who do; begin it where nobody has."""
        flight = self._flights.get(key)
        if flight is None or flight.given_up.is_set():
            flight = self._flights[key] = _Flight()
            flight.task = asyncio.create_task(self._build(flight, recipe, key[1]))
        task = flight.task
        assert task is not None
        flight.waiters += 1
        try:
            starting = asyncio.create_task(flight.started.wait())
            try:
                await asyncio.wait({starting, task}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                starting.cancel()
            try:
                return await Deadline(self._quiet, seconds).result(asyncio.create_task(_shielded(task)))
            except TimeoutError:
                if flight.waiters > 1:
                    return BuildResult(digest=key[0], path=None, ending=SandboxEnding(kind=SandboxEnd.WALL_TIMEOUT))
                flight.given_up.set()
                return await asyncio.shield(task)  # it ends now, and says what it had come to
        finally:
            flight.waiters -= 1
            if not flight.waiters:
                if self._flights.get(key) is flight:
                    del self._flights[key]
                if not task.done():
                    task.cancel()
                    await asyncio.wait({task})

    async def _build(self, flight: _Flight, recipe: Recipe, memory_bytes: int) -> BuildResult:
        asked = self._quiet.elapsed()
        async with self._workers:
            waited = self._quiet.elapsed() - asked
            flight.started.set()
            object_fd = os.memfd_create("kernelevo-object", os.MFD_CLOEXEC)
            files_fd = -1
            try:
                files_fd, unpack = _files(recipe)
                process = await self._sandbox.start(self._spec(recipe, unpack, files_fd, object_fd, memory_bytes))
                ending, killed = await self._wait(process, flight)
                return await asyncio.to_thread(self._result, recipe, ending, killed, waited, object_fd)
            finally:
                os.close(object_fd)
                if files_fd >= 0:
                    os.close(files_fd)

    async def _wait(self, process: SandboxProcess, flight: _Flight) -> tuple[Ending, bool]:
        """How the build ended, and whether it was because nobody waits any longer."""
        waiting = asyncio.create_task(process.wait())
        giving_up = asyncio.create_task(flight.given_up.wait())
        try:
            await self._quiet.add(process)
            await asyncio.wait({waiting, giving_up}, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                return waiting.result(), False
            return await process.kill(), True
        finally:
            giving_up.cancel()
            waiting.cancel()
            await asyncio.wait({waiting, giving_up})
            await self._quiet.remove(process, thaw=False)
            await process.kill()

    def _spec(self, recipe: Recipe, unpack: str, files_fd: int, object_fd: int, memory_bytes: int) -> SandboxSpec:
        # A backend leaves out what it shows already: an image need not hold the toolkit, and has the host's.
        tools = tuple(Mount(source=folder, target=str(folder)) for folder in recipe.mounts)
        script = f"{_OWN_FOLDER}{unpack}{recipe.script()}cat {OBJECT} >&{OBJECT_FD}\n"
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "TMPDIR": "/tmp", "LC_ALL": "C.UTF-8", "HOME": "/tmp"}
        return SandboxSpec(
            argv=("/bin/sh", "-c", script),
            env=environment | dict(recipe.environment),
            limits=Limits(
                memory_bytes=memory_bytes,
                processes=64,
                file_size_bytes=OBJECT_BYTES,
                tmpfs_bytes=4 * OBJECT_BYTES,
                output_bytes=1 << 20,
                cpu_seconds=self._cpu_seconds,
            ),
            fds={FILES_FD: files_fd, OBJECT_FD: object_fd},
            mounts=(*runner_mounts(), *tools),
            cpus=self._cpus,
            label="build",
        )

    def _result(self, recipe: Recipe, ending: Ending, killed: bool, waited: float, object_fd: int) -> BuildResult:
        log = ending.stdout.text() + ending.stderr.text()
        notes = Notes(
            kernels=tuple(kernel_resources(log)),
            diagnostics=tuple(diagnostics(log, recipe.sources)),
        )
        built = ending.kind is EndKind.EXITED and ending.exit_code == 0 and not killed
        try:
            path = self._artefacts.keep(recipe.digest, object_fd, notes) if built else None
        except OSError as error:
            raise ExecutorFault(f"what was built cannot be kept in the state folder: {error}") from error
        return BuildResult(
            digest=recipe.digest,
            path=path,
            wall_seconds=ending.wall_seconds,
            waited_seconds=waited,
            cpu_seconds=ending.cpu_seconds,
            peak_memory_bytes=ending.peak_memory_bytes,
            log=captured(without_assembler_talk(log).encode()),
            diagnostics=notes.diagnostics,
            kernels=notes.kernels,
            ending=sandbox_ending(ending) if killed or ending.kind is not EndKind.EXITED else None,
        )


async def _shielded(task: asyncio.Task[BuildResult]) -> BuildResult:
    return await asyncio.shield(task)


def _files(recipe: Recipe) -> tuple[int, str]:
    """The recipe's files in one descriptor, and the shell lines that lay them out from it."""
    folders = sorted({str(PurePosixPath(name).parent) for name in recipe.files} - {"."})
    lines = [f"mkdir -p {shlex.join(folders)} || exit"] if folders else []
    fd = os.memfd_create("kernelevo-files", os.MFD_CLOEXEC)
    for name, text in recipe.files.items():
        data = text.encode(errors="surrogateescape")
        lines.append(f"head -c {len(data)} <&{FILES_FD} >{shlex.quote(name)} || exit")
        while data:
            data = data[os.write(fd, data) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd, "\n".join([*lines, f"exec {FILES_FD}<&-"]) + "\n"
