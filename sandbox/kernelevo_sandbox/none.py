"""No isolation at all: a plain process of this user, with limits, capture and the end of its whole tree.

For code that one wrote oneself, on a host that cannot isolate. It sees every file and the network, and can signal every
process of this user. It must never be chosen silently in place of a sandbox; its probe says what does not hold.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from kernelevo_sandbox import owners
from kernelevo_sandbox.contract import Guarantee, Sandbox, SandboxBroken, SandboxSpec, SandboxUnavailable
from kernelevo_sandbox.plumbing import check, discard, pipe, rlimits
from kernelevo_sandbox.spawning import Launcher, Request
from kernelevo_sandbox.supervision import StatusPipe, SupervisedProcess
from kernelevo_sandbox.watchdog import ProcTree

if TYPE_CHECKING:
    from kernelevo_sandbox.contract import SandboxProcess

_TEMPORARY = "kernelevo-none"
"""Begins the name of a process' folder for temporary files; its owner's mark follows."""


class NoSandbox(Sandbox):
    """Plain processes. Bound to the event loop that first uses it."""

    name = "none"

    def __init__(self) -> None:
        if not sys.platform.startswith("linux"):
            raise SandboxUnavailable(f"running programs with limits needs Linux; this is {sys.platform}")
        self._launcher = Launcher()
        self._living: set[SupervisedProcess] = set()
        self._closed = False

    async def start(self, spec: SandboxSpec) -> SandboxProcess:
        """Start `spec` with the caller's rights.

        `mounts` must be where they already are: nothing can be mounted. /tmp is the host's; a TMPDIR in `spec.env` becomes a
        folder of its own, which is gone when the process is, however it ends.
        """
        if self._closed:
            raise SandboxBroken("this sandbox backend was closed")
        check(spec)
        for mount in spec.mounts:
            if mount.target != str(mount.source):
                raise SandboxBroken(f"without a sandbox nothing can be mounted: {mount.source} at {mount.target}")
        started = time.monotonic()
        tree = ProcTree()
        tree.apply(spec.limits, spec.cpus)
        environment = dict(spec.env)
        temporary: Path | None = None
        if "TMPDIR" in environment:
            try:
                temporary = Path(tempfile.mkdtemp(prefix=f"{_TEMPORARY}-{owners.mark()}-", dir=environment["TMPDIR"]))
            except OSError as failure:
                raise SandboxBroken(f"no folder for temporary files can be made: {failure}") from failure
            environment["TMPDIR"] = str(temporary)

        def ended(process: SupervisedProcess) -> None:
            self._living.discard(process)
            _remove(temporary)

        try:
            cell = await self._launcher.cell(())
        except BaseException:
            _remove(temporary)
            raise
        try:
            with contextlib.ExitStack() as ours, contextlib.ExitStack() as read_ends:
                stdout, stdout_end = pipe(ours, read_ends)
                stderr, stderr_end = pipe(ours, read_ends)
                status, status_end = pipe(ours, read_ends)
                nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
                ours.callback(os.close, nothing)
                await cell.execute(
                    Request(
                        argv=spec.argv,
                        env=environment,
                        fds={0: nothing, 1: stdout_end, 2: stderr_end, **spec.fds},
                        rlimits=rlimits(spec.limits, processes=None),
                        cpus=spec.cpus,
                        nice=spec.nice,
                        supervise_report=status_end,
                    )
                )
                read_ends.pop_all()  # their readers close them
            process = SupervisedProcess(
                cell=cell,
                tree=tree,
                limits=spec.limits,
                status=StatusPipe(status),
                stdout=stdout,
                stderr=stderr,
                started=started,
                label=spec.label,
                on_end=ended,
            )
        except BaseException:
            await discard(cell, tree)
            _remove(temporary)
            raise
        tree.attach(cell.pid, None)
        self._living.add(process)
        return process

    async def probe(self, cpus: frozenset[int] | None = None) -> tuple[Guarantee, ...]:
        from kernelevo_sandbox.probes import probe

        return await probe(self, (), cpus)

    async def sweep(self) -> int:
        """Folders of owners that are no more; processes end with the launcher."""
        name = re.compile(rf"{_TEMPORARY}-({owners.MARK})-")
        left = [
            place
            for place in Path(tempfile.gettempdir()).glob(f"{_TEMPORARY}-*")
            if (match := name.match(place.name)) and owners.dead(match.group(1))
        ]
        for place in left:
            _remove(place)
        return len(left)

    async def close(self) -> None:
        self._closed = True
        if self._living:
            await asyncio.gather(*(process.kill() for process in self._living), return_exceptions=True)
        await self._launcher.close()


def _remove(folder: Path | None) -> None:
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
