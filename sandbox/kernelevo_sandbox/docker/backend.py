"""The backend itself: containers made ready, used once, and removed; and what earlier lives have left."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import shutil
import sys
import tempfile
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kernelevo_sandbox import owners, seccomp
from kernelevo_sandbox.contract import Guarantee, Sandbox, SandboxBroken, SandboxError, SandboxUnavailable
from kernelevo_sandbox.docker.configuration import OWN_PROCESSES, Shape, configuration
from kernelevo_sandbox.docker.container import Container, Folder, connect
from kernelevo_sandbox.docker.engine import Engine
from kernelevo_sandbox.docker.gpus import gpu_request, toolkit_refusal
from kernelevo_sandbox.docker.options import DockerOptions, GpuAccess
from kernelevo_sandbox.docker.tree import ContainerTree
from kernelevo_sandbox.mounts import interpreter_mounts
from kernelevo_sandbox.plumbing import check, pipe, rlimits
from kernelevo_sandbox.spawning import Launcher, Request
from kernelevo_sandbox.supervision import SupervisedProcess
from kernelevo_sandbox.uids import Uids

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from kernelevo_sandbox.contract import SandboxProcess, SandboxSpec

_log = logging.getLogger(__name__)

BACKEND_LABEL = "org.kernelevo.backend"
LEASE_LABEL = "org.kernelevo.lease"
DEADLINE_LABEL = "org.kernelevo.deadline"
LEASE_SECONDS = 86_400.0
"""How long a container is left alone whose owner cannot be looked up, as it lives in another pid namespace."""
_FOLDER = "kernelevo-docker-"
_FOLDER_NAME = re.compile(rf"{_FOLDER}({owners.MARK})-\w+")
_DEATH_SECONDS = 10.0
_REMEMBERED_SHAPES = 16


@dataclass(frozen=True, slots=True)
class _Held:
    """A container with what is given back when it is gone."""

    container: Container
    folder: Folder
    uid: int


class DockerSandbox(Sandbox):
    """Sandboxes by a Docker engine of this host. Bound to the event loop that first uses it."""

    name = "docker"

    def __init__(self, options: DockerOptions | None = None) -> None:
        """
        Raises:
            SandboxUnavailable: this host or user cannot use an engine, whatever it says.
        """
        if not sys.platform.startswith("linux"):
            raise SandboxUnavailable(f"running containers needs Linux; this is {sys.platform}")
        if os.geteuid() != 0:
            raise SandboxUnavailable(
                "the docker backend ends and freezes containers through the kernel, as root: run as root, or use bubblewrap, "
                "which needs no root"
            )
        self._options = options or DockerOptions()
        self._engine = Engine(self._options)
        self._launcher = Launcher()
        self._uids = Uids()
        self._mark = owners.mark()
        self._image: str | None = None
        self._base: Path | None = None
        self._filter: bytes | None = None
        self._toolkit_seen = False
        self._preparing = asyncio.Lock()
        self._living: set[SupervisedProcess] = set()
        self._spares: OrderedDict[Shape, asyncio.Task[_Held]] = OrderedDict()
        self._used: OrderedDict[Shape, None] = OrderedDict()
        self._removals: set[asyncio.Task[None]] = set()
        self._left: set[str] = set()
        """Containers whose processes are gone and whose records the engine did not remove when it was asked."""
        self._folders = 0
        self._closed = False

    async def start(self, spec: SandboxSpec) -> SandboxProcess:
        if self._closed:
            raise SandboxBroken("this sandbox backend was closed")
        check(spec)
        await self._open()
        shape = Shape.of(spec)
        held = await self._take(shape)
        try:
            return await self._run(spec, held)
        except BaseException:
            await self._dispose(held)
            raise
        finally:
            self._prepare(shape)

    async def probe(self, cpus: frozenset[int] | None = None) -> tuple[Guarantee, ...]:
        from kernelevo_sandbox.probes import probe

        return await probe(self, interpreter_mounts(), cpus)

    async def sweep(self) -> int:
        await self._open()
        return await self._sweep_containers(ours=False) + await asyncio.to_thread(_sweep_folders)

    async def close(self) -> None:
        self._closed = True
        spares, self._spares = self._spares, OrderedDict()
        for spare in spares.values():
            with contextlib.suppress(SandboxError, asyncio.CancelledError):
                await self._dispose(await spare)
        if self._living:
            await asyncio.gather(*(process.kill() for process in self._living), return_exceptions=True)
        while self._removals:
            await asyncio.gather(*self._removals, return_exceptions=True)
        if self._image is not None:
            with contextlib.suppress(SandboxBroken):
                await self._sweep_containers(ours=True)
        self._image = None
        await self._launcher.close()
        self._uids.close()
        self._engine.close()
        if self._base is not None:
            await asyncio.to_thread(shutil.rmtree, self._base, True)
            self._base = None

    async def _open(self) -> str:
        async with self._preparing:
            if self._image is None:
                self._image = await self._engine.open()
                self._filter = seccomp.program()
                self._base = Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{self._mark}-"))
            return self._image

    # How a container comes about.

    async def _take(self, shape: Shape) -> _Held:
        spare = self._spares.pop(shape, None)
        if spare is not None:
            # A spare that failed, or that ended meanwhile, says nothing about the next one.
            with contextlib.suppress(SandboxBroken):
                try:
                    held = await asyncio.shield(spare)
                except asyncio.CancelledError:
                    self._remove_later(self._give_up(spare))
                    raise
                if held.container.usable:
                    return held
                await self._dispose(held)
        return await self._new(shape)

    def _prepare(self, shape: Shape) -> None:
        """Keep a container ready of every shape that was used more than once of late, up to the number allowed."""
        known = shape in self._used
        self._used[shape] = None
        self._used.move_to_end(shape)
        while len(self._used) > _REMEMBERED_SHAPES:
            self._used.popitem(last=False)
        if not known or self._closed or shape in self._spares or self._options.spares < 1:
            return
        while len(self._spares) >= self._options.spares:
            _, oldest = self._spares.popitem(last=False)
            self._remove_later(self._give_up(oldest))
        task = asyncio.create_task(self._new(shape), name="sandbox spare")
        # Whoever takes it sees its failure; nobody may.
        task.add_done_callback(lambda task: task.cancelled() or task.exception())
        self._spares[shape] = task

    async def _new(self, shape: Shape) -> _Held:
        assert self._image is not None and self._base is not None
        gpus = gpu_request(shape.devices, self._options.gpu)
        if gpus.get("DeviceRequests"):
            await self._trust_toolkit()
        self._folders += 1
        uid = self._uids.take()
        name: str | None = None
        folder: Folder | None = None
        try:
            folder = Folder(self._base / str(self._folders), uid)
            with folder.listen() as listener:
                config = configuration(
                    shape,
                    image=self._image,
                    uid=uid,
                    box=folder.box,
                    etc=folder.etc_files(),
                    labels={
                        BACKEND_LABEL: self._base.name,
                        LEASE_LABEL: self._mark,
                        DEADLINE_LABEL: str(int(time.time() + LEASE_SECONDS)),
                    },
                    runtime=self._options.runtime,
                    gpus=gpus,
                )
                name = await self._engine.create(config)
                await self._engine.start(name)
                container = await connect(self._engine, name, folder, listener)
            held = _Held(container, folder, uid)
            try:
                container.guard = await self._launcher.cell((), container.tree.thaw_files())
            except BaseException:
                await self._dispose(held)
                name = folder = None
                raise
            return held
        except BaseException as failure:
            if folder is not None:
                self._remove_later(self._removed(name, folder, uid))
            else:
                self._uids.give_back(uid)
            if isinstance(failure, OSError):
                raise SandboxBroken(f"no container can be prepared in {self._base}: {failure}") from failure
            raise

    async def _trust_toolkit(self) -> None:
        if not self._toolkit_seen and self._options.gpu is not GpuAccess.NODES:
            if refusal := await asyncio.to_thread(toolkit_refusal):
                raise SandboxUnavailable(refusal)
            self._toolkit_seen = True

    async def _run(self, spec: SandboxSpec, held: _Held) -> SupervisedProcess:
        container, limits = held.container, spec.limits
        started = time.monotonic()
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as read_ends:
            stdout, stdout_end = pipe(ours, read_ends)
            stderr, stderr_end = pipe(ours, read_ends)
            nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            ours.callback(os.close, nothing)
            status = await container.execute(
                Request(
                    argv=spec.argv,
                    env=spec.env,
                    fds={0: nothing, 1: stdout_end, 2: stderr_end, **spec.fds},
                    rlimits=rlimits(limits, processes=limits.processes + OWN_PROCESSES),
                    cpus=spec.cpus,
                    nice=spec.nice,
                    folder="/tmp",
                    seccomp=self._filter,
                )
            )
            read_ends.pop_all()  # their readers close them
        process = SupervisedProcess(
            cell=container,
            tree=container.tree,
            limits=limits,
            status=status,
            stdout=stdout,
            stderr=stderr,
            started=started,
            label=spec.label,
            on_end=lambda process: self._ended(process, held),
        )
        self._living.add(process)
        _log.debug("sandbox %s: container %s, pid %s", spec.label, container.name[:12], container.pid)
        return process

    # How it goes.

    def _ended(self, process: SupervisedProcess, held: _Held) -> None:
        self._living.discard(process)
        # Its processes are gone. What the engine still holds, a record and a layer, nobody waits for.
        self._remove_later(self._removed(held.container.name, held.folder, held.uid))

    def _remove_later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="container removal")
        self._removals.add(task)
        task.add_done_callback(self._removals.discard)

    async def _give_up(self, spare: asyncio.Task[_Held]) -> None:
        with contextlib.suppress(SandboxError, asyncio.CancelledError):
            await self._dispose(await spare)

    async def _dispose(self, held: _Held) -> None:
        """End and remove a container that has no supervisor."""
        held.container.tree.kill()
        held.container.signal(9)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DEATH_SECONDS):
                await asyncio.shield(held.container.exit)
        held.container.close()
        held.container.tree.close()
        await self._removed(held.container.name, held.folder, held.uid)

    async def _removed(self, name: str | None, folder: Folder, uid: int) -> None:
        try:
            if name is not None and await self._record_removed(name):
                # The engine answers again, or still.
                while self._left and await self._record_removed(self._left.pop()):
                    pass
        finally:
            await asyncio.to_thread(folder.remove)
            self._uids.give_back(uid)

    async def _record_removed(self, name: str) -> bool:
        try:
            await self._engine.remove(name)
        except SandboxBroken as failure:
            self._left.add(name)
            _log.warning("a container is left until the engine removes another: %s", failure)
            return False
        return True

    async def _sweep_containers(self, *, ours: bool) -> int:
        """Remove this backend's own leftovers, or those whose owner is gone."""
        removed = 0
        mine = self._base.name if self._base is not None else None
        for name, labels in (await self._engine.labelled(LEASE_LABEL)).items():
            lease = labels.get(LEASE_LABEL, "")
            late = not owners.known(lease) and time.time() > _number(labels.get(DEADLINE_LABEL, ""))
            if labels.get(BACKEND_LABEL) == mine if ours else owners.dead(lease) or late:
                with contextlib.suppress(SandboxBroken):
                    # One that was left frozen neither ends nor can be removed.
                    ContainerTree((await self._engine.state(name)).pid).kill()
                removed += await self._engine.remove(name)
        return removed


def _number(text: str) -> float:
    return float(text) if text.isdigit() else 0.0


def _sweep_folders() -> int:
    removed = 0
    for place in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        match = _FOLDER_NAME.fullmatch(place.name)
        if match is not None and owners.dead(match.group(1)) and place.lstat().st_uid == os.geteuid():
            shutil.rmtree(place, ignore_errors=True)
            removed += 1
    return removed
