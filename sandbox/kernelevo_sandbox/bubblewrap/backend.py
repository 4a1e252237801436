"""The backend itself: one bubblewrap for each sandbox, forked from the launcher, in control groups or under the watchdog."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from kernelevo_sandbox import cgroups, seccomp
from kernelevo_sandbox.bubblewrap.arguments import options
from kernelevo_sandbox.bubblewrap.shapes import Identity, find_bwrap, find_setpriv, readable_by_others
from kernelevo_sandbox.contract import Guarantee, Limits, Sandbox, SandboxBroken, SandboxSpec, SandboxUnavailable
from kernelevo_sandbox.mounts import interpreter_mounts
from kernelevo_sandbox.plumbing import check, discard, pipe, rlimits
from kernelevo_sandbox.spawning import Cell, Launcher, Request, memory_file
from kernelevo_sandbox.supervision import StatusPipe, SupervisedProcess
from kernelevo_sandbox.uids import Uids
from kernelevo_sandbox.watchdog import ProcTree

if TYPE_CHECKING:
    from pathlib import Path

    from kernelevo_sandbox.contract import SandboxProcess
    from kernelevo_sandbox.trees import Tree

_log = logging.getLogger(__name__)

_OWN_PROCESSES = 2
"""bubblewrap's monitor and the namespace's first process: in the tree's count, not the program's."""
_SET_UP_SECONDS = 20.0
REFUSAL_SECONDS = 60.0
"""How long it is believed that a kind of sandbox cannot be made, where another can."""
_REMOVE_TRIES = 100
_REMOVE_PAUSE_SECONDS = 0.01
_FILTERED_INIT = ("/bin/sh", "-c", '"$@"; exit "$?"', "sandbox", "/usr/bin/env")
"""The namespace's first process, where the program has the uid of bubblewrap's own reaper, whose memory it could then open:
and the reaper runs outside the filter, which bubblewrap loads last. A shell waits and reaps as well, inside the filter."""
_SHELL_SETS = ("PWD", "OLDPWD", "SHLVL", "_")
_DROP = ("--clear-groups", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")
_USERNS_REMEDY = (
    "Allow unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1, user.max_user_namespaces above 0, and on "
    "Ubuntu kernel.apparmor_restrict_unprivileged_userns=0 or a profile for bwrap), or run the evaluator as root"
)


class BubblewrapSandbox(Sandbox):
    """Sandboxes by bubblewrap. Bound to the event loop that first uses it."""

    name = "bubblewrap"

    def __init__(self, *, use_cgroups: bool = True, keep_spare: bool = True) -> None:
        """
        Args:
            use_cgroups: `False` leaves memory and processes to the watchdog even where control groups could hold them.
            keep_spare: keep one forked child ready in its control groups, so that a start need not wait for the kernel
                to move it there.
        """
        if not sys.platform.startswith("linux"):
            raise SandboxUnavailable(f"bubblewrap needs Linux; this is {sys.platform}")
        self._use_cgroups = use_cgroups
        self._keep_spare = keep_spare
        self._launcher = Launcher()
        self._uids = Uids()
        self._living: set[SupervisedProcess] = set()
        self._layout: cgroups.Layout | None = None
        self._layout_failed = False
        self._bwrap: Path | None = None
        self._filter: bytes | None = None
        self._possible: set[Identity] = set()
        self._refused: dict[Identity, tuple[str, float]] = {}
        self._preparing = asyncio.Lock()
        self._spare: asyncio.Task[tuple[Cell, Tree]] | None = None
        self._closed = False

    @property
    def layout(self) -> cgroups.Layout:
        """Which control groups can be used here."""
        if self._layout is None:
            self._layout = cgroups.discover() if self._use_cgroups else cgroups.Layout(why_not=("not asked for",))
        return self._layout

    def _new_tree(self) -> Tree:
        if self._layout_failed and self._use_cgroups:
            self._layout_failed = False
            # They may have been made anew, or elsewhere. Never fall to the watchdog meanwhile: a limit that the kernel kept
            # would be kept less well, and nobody told.
            found = cgroups.discover()
            if found.version is not None:
                self._layout = found
        layout = self.layout
        return cgroups.CgroupTree(layout) if layout.version is not None else ProcTree()

    async def start(self, spec: SandboxSpec) -> SandboxProcess:
        if self._closed:
            raise SandboxBroken("this sandbox backend was closed")
        check(spec)
        identity = await self.identity(spec)
        uid = self._uids.take() if identity is not Identity.SAME else None
        try:
            started = time.monotonic()
            cell, tree = await self._cell()
            try:
                return await self._run(spec, identity, uid, cell, tree, started)
            except SandboxBroken:
                self._layout_failed = True
                await discard(cell, tree)
                raise
            except BaseException:
                await discard(cell, tree)
                raise
            finally:
                self._prepare_spare()
        except BaseException:
            if uid is not None:
                self._uids.give_back(uid)
            raise

    async def probe(self, cpus: frozenset[int] | None = None) -> tuple[Guarantee, ...]:
        from kernelevo_sandbox.probes import probe

        return await probe(self, interpreter_mounts(), cpus)

    async def sweep(self) -> int:
        return await asyncio.to_thread(cgroups.sweep) if self._use_cgroups else 0

    async def close(self) -> None:
        self._closed = True
        spare, self._spare = self._spare, None
        if spare is not None:
            with contextlib.suppress(SandboxBroken, asyncio.CancelledError):
                await discard(*await spare)
        if self._living:
            await asyncio.gather(*(process.kill() for process in self._living), return_exceptions=True)
        await self._launcher.close()
        self._uids.close()

    # How a cell comes about.

    async def _cell(self) -> tuple[Cell, Tree]:
        spare, self._spare = self._spare, None
        if spare is not None:
            # A spare that failed, or whose launcher died meanwhile, says nothing about the next one.
            with contextlib.suppress(SandboxBroken):
                try:
                    cell, tree = await asyncio.shield(spare)
                except asyncio.CancelledError:
                    self._spare = spare if self._spare is None else self._spare
                    raise
                if not cell.exit.done():
                    return cell, tree
                await discard(cell, tree)
        return await self._new_cell()

    def _prepare_spare(self) -> None:
        if self._keep_spare and self._spare is None and not self._closed:
            self._spare = asyncio.create_task(self._new_cell(), name="sandbox spare")
            # Whoever takes it sees its failure; nobody may.
            self._spare.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _new_cell(self) -> tuple[Cell, Tree]:
        try:
            tree = self._new_tree()
        except SandboxBroken:
            self._layout_failed = True
            raise
        try:
            return await self._launcher.cell(tree.join_files(), tree.thaw_files()), tree
        except BaseException:
            # A child that was forked in spite of this ends by itself, and leaves the groups then.
            for _ in range(_REMOVE_TRIES):
                if tree.remove():
                    break
                await asyncio.sleep(_REMOVE_PAUSE_SECONDS)
            raise

    # Who the program is.

    async def identity(self, spec: SandboxSpec) -> Identity:
        """Who the program of `spec` would be, outside.

        Raises:
            SandboxUnavailable: nobody harmless; says why.
        """
        if self._bwrap is None:
            self._bwrap = await asyncio.to_thread(find_bwrap)
        if os.geteuid() != 0:
            if (refusal := await self._refusal(Identity.SAME)) is not None:
                raise SandboxUnavailable(
                    f"this user cannot create the namespaces that isolate: {refusal}. {_USERNS_REMEDY}"
                )
            return Identity.SAME
        needed = [self._bwrap, *(mount.source for mount in spec.mounts)]
        if all(map(readable_by_others, needed)) and await self._refusal(Identity.DROPPED) is None:
            return Identity.DROPPED
        if find_setpriv() is None:
            raise SandboxUnavailable(
                "setpriv is missing, which drops root's rights inside: install util-linux, or run as an ordinary user"
            )
        if (refusal := await self._refusal(Identity.INSIDE)) is not None:
            self._refused.clear()  # whatever it is, it is not the one kind's
            raise SandboxUnavailable(
                f"root cannot create the namespaces that isolate: {refusal}. In a container it needs CAP_SYS_ADMIN, and a "
                "seccomp and AppArmor profile that allow mounts"
            )
        return Identity.INSIDE

    async def _refusal(self, identity: Identity) -> str | None:
        """Why that kind of sandbox cannot be made here, found by making one; `None` if it can.

        That it can is remembered. That it cannot may have been a moment's lack of memory: `DROPPED`, which every start asks for
        where there is another way, is tried again after a while, the others at every start.
        """
        async with self._preparing:
            if identity in self._possible:
                return None
            refused, until = self._refused.get(identity, ("", 0.0))
            if time.monotonic() < until:
                return refused
            refusal = await self._tried(identity)
            if refusal is None:
                self._possible.add(identity)
            elif identity is Identity.DROPPED:
                if refused != refusal:
                    _log.warning(
                        "sandboxes keep the host's user namespace, as they cannot be made otherwise: %s", refusal
                    )
                self._refused[identity] = (refusal, time.monotonic() + REFUSAL_SECONDS)
            return refusal

    async def _tried(self, identity: Identity) -> str | None:
        """Make a sandbox of that kind; why it could not be made, or `None`."""
        spec = SandboxSpec(argv=("/bin/sh", "-c", "exit 0"), env={}, limits=Limits(memory_bytes=256 << 20))
        uid = self._uids.take() if identity is not Identity.SAME else None
        try:
            cell, tree = await self._new_cell()
            try:
                process = await self._run(spec, identity, uid, cell, tree, time.monotonic())
            except BaseException:
                await discard(cell, tree)
                raise
            ending = await process.wait()
            if ending.exit_code != 0:
                return f"{ending.detail}: {ending.stderr.text()[-500:]}"
        except SandboxBroken as failure:
            return str(failure)
        finally:
            if uid is not None:
                self._uids.give_back(uid)
        return None

    # What bubblewrap is told.

    async def _run(
        self, spec: SandboxSpec, identity: Identity, uid: int | None, cell: Cell, tree: Tree, started: float
    ) -> SupervisedProcess:
        assert self._bwrap is not None  # found when the identity was settled
        if self._filter is None:
            self._filter = seccomp.program()
        limits = spec.limits
        tree.apply(replace(limits, processes=limits.processes + _OWN_PROCESSES), spec.cpus)
        tree.attach(cell.pid, None)
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as read_ends:
            stdout, stdout_end = pipe(ours, read_ends)
            stderr, stderr_end = pipe(ours, read_ends)
            status, status_end = pipe(ours, read_ends)
            nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            ours.callback(os.close, nothing)
            fds = {0: nothing, 1: stdout_end, 2: stderr_end, **spec.fds}
            numbers = _Numbers(set(fds))

            def pass_on(fd: int) -> str:
                number = next(numbers)
                fds[number] = fd
                return str(number)

            def pass_file(content: bytes, name: str) -> str:
                fd = memory_file(content, name)
                ours.callback(os.close, fd)
                return pass_on(fd)

            told = options(spec, identity, uid, pass_file)
            told += ["--seccomp", pass_file(self._filter, "seccomp"), "--json-status-fd", pass_on(status_end)]
            if identity is Identity.INSIDE:
                start = [find_setpriv() or "setpriv", *_DROP, f"--reuid={uid}", f"--regid={uid}", "--"]
            else:
                told += ["--as-pid-1"]
                start = [
                    *_FILTERED_INIT,
                    *(word for name in _SHELL_SETS if name not in spec.env for word in ("-u", name)),
                ]
            arguments = pass_file(b"".join(option.encode() + b"\0" for option in told), "arguments")
            request = Request(
                argv=[str(self._bwrap), "--args", arguments, "--", *start, *spec.argv],
                # Empty: bubblewrap's own environment is readable inside, as that of the namespace's first process.
                env={},
                fds=fds,
                rlimits=rlimits(limits, processes=_counted(limits, identity)),
                cpus=spec.cpus,
                nice=spec.nice,
                uid=uid if identity is Identity.DROPPED else None,
            )
            await cell.execute(request)
            read_ends.pop_all()  # their readers close them
            said = StatusPipe(status)
            process = SupervisedProcess(
                cell=cell,
                tree=tree,
                limits=limits,
                status=said,
                stdout=stdout,
                stderr=stderr,
                started=started,
                label=spec.label,
                on_end=lambda process: self._ended(process, uid),
            )
            self._living.add(process)
        try:
            async with asyncio.timeout(_SET_UP_SECONDS):
                init = await said.wait_for("child-pid")
        except BaseException:
            await process.kill()
            raise
        if init is None:
            await process.wait()  # says why
            raise SandboxBroken("bubblewrap ended before it had made a namespace")
        process.adopt(init)
        _log.debug("sandbox %s: pid %s, %s", spec.label, init, identity.value)
        return process

    def _ended(self, process: SupervisedProcess, uid: int | None) -> None:
        self._living.discard(process)
        if uid is not None:
            self._uids.give_back(uid)


def _counted(limits: Limits, identity: Identity) -> int | None:
    """RLIMIT_NPROC, which counts all processes of a uid: only for one that is this sandbox's alone."""
    if identity is Identity.SAME:
        return None
    return limits.processes + (_OWN_PROCESSES if identity is Identity.DROPPED else 0)


class _Numbers:
    """Descriptor numbers inside that the program's own do not use."""

    def __init__(self, taken: set[int]) -> None:
        self._taken = taken
        self._last = 2

    def __next__(self) -> int:
        self._last += 1
        while self._last in self._taken:
            self._last += 1
        return self._last
