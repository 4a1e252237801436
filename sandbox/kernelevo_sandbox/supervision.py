"""One running sandbox, whatever the backend: watches its limits, ends its tree, and states how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import select
import signal
import time
from typing import TYPE_CHECKING, Protocol

from kernelevo_sandbox.capture import Capture
from kernelevo_sandbox.classify import Evidence, classify
from kernelevo_sandbox.contract import Ending, EndKind, SandboxBroken, SandboxProcess
from kernelevo_sandbox.watchdog import parent_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelevo_sandbox.contract import Captured, Limits
    from kernelevo_sandbox.freezer import Freezer
    from kernelevo_sandbox.spawning import CellExit
    from kernelevo_sandbox.trees import Tree, Usage

_log = logging.getLogger(__name__)

POLL_SECONDS = 0.05
"""How often limits are looked at that the kernel keeps itself, or that cannot hurt within this time."""
WATCHDOG_POLL_SECONDS = 0.01
"""How often memory is looked at where only this process keeps the limit."""
_POLL_SHARE = 3.0
"""A look at the limits is followed by a pause of at least this many times its duration."""
_LONGEST_POLL_SECONDS = 0.1
_FREEZE_SPIN_SECONDS = 0.002
_FREEZE_SECONDS = 5.0
_DEATH_SECONDS = 10.0
_STATUS_BYTES = 64 * 1024


class StatusPipe:
    """JSON lines that the backend's program writes about itself: `child-pid`, `exit-code`, `wait-status`."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._open = True
        self._text = b""
        self._values: dict[str, int] = {}
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._read)
        self._at_end = False

    def _read(self) -> None:
        try:
            chunk = os.read(self._fd, _STATUS_BYTES)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk or len(self._text) > _STATUS_BYTES:
            self._at_end = True
            self._loop.remove_reader(self._fd)
        self._text += chunk
        *lines, self._text = self._text.split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError):
                self._values.update({key: value for key, value in json.loads(line).items() if isinstance(value, int)})
        self._changed.set()

    async def wait_for(self, key: str) -> int | None:
        """The value once it is there; `None` when the pipe ends without it."""
        while key not in self._values and not self._at_end:
            self._changed.clear()
            await self._changed.wait()
        return self._values.get(key)

    def look(self) -> None:
        """Take what has arrived, without waiting for the event loop to say so."""
        if self._open and not self._at_end:
            self._read()

    def get(self, key: str) -> int | None:
        """The value so far."""
        return self._values.get(key)

    def finish(self) -> None:
        """Read what is left and close. Idempotent."""
        if self._open:
            self._open = False
            if not self._at_end:
                self._read()
                self._loop.remove_reader(self._fd)
            os.close(self._fd)


class Root(Protocol):
    """The first process of a tree, as seen from outside: a launcher's cell, or a container's."""

    pid: int
    exit: asyncio.Future[CellExit]
    """Set when it has ended."""

    def signal(self, number: int) -> None:
        """Tell it to end; nothing happens once it has."""

    def close(self) -> None:
        """Give up the handles on it. Idempotent."""


class SupervisedProcess(SandboxProcess):
    """A sandbox with its first process, whoever started that."""

    def __init__(
        self,
        *,
        cell: Root,
        tree: Tree,
        limits: Limits,
        status: StatusPipe,
        stdout: int,
        stderr: int,
        started: float,
        label: str,
        on_end: Callable[[SupervisedProcess], None],
    ) -> None:
        self._cell = cell
        self._tree = tree
        self._limits = limits
        self._status = status
        self._label = label
        self._on_end = on_end
        self._started = started
        self._frozen_at: float | None = None
        self._frozen_seconds = 0.0
        self._wanted_frozen = False
        self._init_fd: int | None = None
        self._killed_for: EndKind | None = None
        self._killed_detail = ""
        self._lost = ""
        self._wake = asyncio.Event()
        cell.exit.add_done_callback(lambda _: self._wake.set())
        self._usage: Usage = tree.usage()
        self._stdout = Capture(stdout, self._output_grew)
        self._stderr = Capture(stderr, self._output_grew)
        self._end = asyncio.create_task(self._supervise(), name=f"sandbox {label or cell.pid}")
        # An end that nobody waits for is no unhandled error.
        self._end.add_done_callback(lambda task: task.cancelled() or task.exception())

    def adopt(self, init: int) -> None:
        """Learn the pid namespace's first process.

        Its end is the end of the whole namespace, descriptors and memory included: the kernel lets it become a zombie only
        when all others are gone. A control group counts a process out earlier, before it has closed its files.
        """
        self._tree.attach(self._cell.pid, init)
        with contextlib.suppress(ProcessLookupError):
            fd = os.pidfd_open(init)
            if parent_of(init) == self._cell.pid:
                self._init_fd = fd
            else:
                os.close(fd)  # the monitor is gone already, and the number may be somebody else's by now

    @property
    def ended(self) -> bool:
        return self._end.done()

    @property
    def pid(self) -> int:
        """The host's number of the tree's first, trusted process (bubblewrap's monitor)."""
        return self._cell.pid

    @property
    def init_pid(self) -> int | None:
        """The host's number of the pid namespace's first process, where there is one."""
        return self._status.get("child-pid")

    def processes(self) -> tuple[int, ...]:
        return () if self.ended else tuple(self._tree.pids())

    def output(self) -> tuple[Captured, Captured]:
        return self._stdout.captured(), self._stderr.captured()

    async def wait(self) -> Ending:
        return await asyncio.shield(self._end)

    async def kill(self, reason: EndKind = EndKind.KILLED, detail: str = "") -> Ending:
        self._kill(reason, detail)
        return await asyncio.shield(self._end)

    async def freeze(self) -> None:
        if self._stopping:
            return
        self._wanted_frozen = True
        began = time.monotonic()
        while not self._stopping and self._wanted_frozen and not self._tree.freeze():
            waited = time.monotonic() - began
            if waited > _FREEZE_SECONDS:
                self.thaw_now()
                raise SandboxBroken(f"the sandbox did not freeze within {_FREEZE_SECONDS:g} s")
            # Most trees freeze within this time, and the caller may be about to time something.
            if waited > _FREEZE_SPIN_SECONDS:
                await asyncio.sleep(0.0005)
        if self._wanted_frozen and self._frozen_at is None:
            self._frozen_at = time.monotonic()

    async def thaw(self) -> None:
        self.thaw_now()

    def thaw_now(self) -> None:
        """`thaw`, which never waits."""
        self._wanted_frozen = False
        if self._frozen_at is not None:
            self._frozen_seconds += time.monotonic() - self._frozen_at
            self._frozen_at = None
        if not self.ended:
            self._tree.thaw()

    def freezer(self) -> Freezer | None:
        return None if self._stopping else self._tree.freezer()

    @property
    def _stopping(self) -> bool:
        return self._killed_for is not None or self.ended

    def _running_seconds(self) -> float:
        now = self._frozen_at if self._frozen_at is not None else time.monotonic()
        return now - self._started - self._frozen_seconds

    def _output_grew(self) -> None:
        if self._stdout.total + self._stderr.total > self._limits.output_bytes:
            self._kill(EndKind.OUTPUT_LIMIT)

    def _kill(self, reason: EndKind, detail: str = "") -> None:
        if self._stopping:
            return
        self._killed_detail = detail
        self._killed_for = reason
        self._kill_tree()
        self._wake.set()

    def _kill_tree(self) -> None:
        self._tree.kill()
        # After the tree, so that a supervisor or monitor finds nothing left to run on. A supervisor ends on SIGTERM, once
        # its children have; bubblewrap's monitor as well.
        self._cell.signal(signal.SIGTERM)

    async def _supervise(self) -> Ending:
        try:
            return await self._watch()
        finally:
            if self._tree.alive():
                # Cancelled, or broken: nothing may be left running either way.
                self._kill_tree()
            self._stdout.finish()
            self._stderr.finish()
            self._status.finish()
            self._cell.close()
            if self._init_fd is not None:
                os.close(self._init_fd)
                self._init_fd = None
            if not await self._removed():
                _log.error("sandbox %s: its control group could not be removed", self._label or self._cell.pid)
            self._on_end(self)

    async def _watch(self) -> Ending:
        least = POLL_SECONDS if self._tree.memory_held_by_kernel else WATCHDOG_POLL_SECONDS
        poll = least
        while not self._cell.exit.done() and self._killed_for is None:
            await self._tick(poll)
            if self._frozen_at is None and not self._cell.exit.done():
                began = time.monotonic()
                self._check_limits()
                # Reading all of a busy host's /proc is slow: looking must not become the main work.
                poll = min(max(least, _POLL_SHARE * (time.monotonic() - began)), _LONGEST_POLL_SECONDS)
        return await self._finish()

    async def _tick(self, poll: float) -> None:
        limit = self._limits.wall_seconds
        if limit is not None and self._frozen_at is None:
            poll = min(poll, max(limit - self._running_seconds(), 0.001))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(poll):
                await self._wake.wait()

    def _check_limits(self) -> None:
        limits = self._limits
        if lost := self._tree.taken_away():
            self._lost = lost
            self._kill(EndKind.KILLED)
            return
        if limits.wall_seconds is not None and self._running_seconds() >= limits.wall_seconds:
            self._kill(EndKind.WALL_TIMEOUT)
            return
        self._usage = usage = self._tree.usage()
        if limits.cpu_seconds is not None and (usage.cpu_seconds or 0.0) >= limits.cpu_seconds:
            self._kill(EndKind.CPU_TIMEOUT)
        elif usage.oom_kills or (
            not self._tree.memory_held_by_kernel and (usage.memory_bytes or 0) > limits.memory_bytes
        ):
            # Where the kernel killed one process of several, the rest goes too: half a program proves nothing.
            self._kill(EndKind.OUT_OF_MEMORY)
        elif not self._tree.processes_held_by_kernel and (usage.processes or 0) > 2 * limits.processes:
            # Nothing refuses the fork here: the bomb is ended instead, with room for what a poll cannot see in time.
            self._kill(EndKind.PROCESS_LIMIT, f"had {usage.processes} processes where {limits.processes} are allowed")

    async def _finish(self) -> Ending:
        deadline = time.monotonic() + _DEATH_SECONDS
        pause = 0.0002
        while True:
            self._wanted_frozen = False
            alive = self._tree.alive() or self._init_alive()
            if self._cell.exit.done() and not alive:
                break
            if alive or self._killed_for is not None:
                self._kill_tree()
            if time.monotonic() > deadline:
                raise SandboxBroken(f"processes of the sandbox outlived SIGKILL by {_DEATH_SECONDS:g} s")
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 0.01)
        if self._killed_for is None:
            self._lost = self._tree.taken_away()
        if self._lost:
            raise SandboxBroken(f"nothing held the sandbox's limits any more: {self._lost}")
        wall = time.monotonic() - self._started - self._frozen_seconds
        if self._frozen_at is not None:
            wall -= time.monotonic() - self._frozen_at
        usage = self._tree.usage()
        self._stdout.finish()
        self._stderr.finish()
        self._status.finish()
        exit_ = self._cell.exit.result()
        stderr = self._stderr.captured()
        classified = classify(
            Evidence(
                killed_for=self._killed_for,
                killed_detail=self._killed_detail,
                oom_kills=max(usage.oom_kills, exit_.out_of_memory),
                outer_status=exit_.status,
                direct_status=self._status.get("wait-status"),
                reported_code=self._status.get("exit-code"),
                cpu_limited=self._limits.cpu_seconds is not None,
                stderr_tail=stderr.text()[-2000:],
            )
        )
        return Ending(
            kind=classified.kind,
            exit_code=classified.exit_code,
            signal=classified.signal,
            detail=classified.detail,
            stdout=self._stdout.captured(),
            stderr=stderr,
            wall_seconds=wall,
            cpu_seconds=max(
                (seconds for seconds in (usage.cpu_seconds, exit_.cpu_seconds) if seconds is not None), default=None
            ),
            peak_memory_bytes=usage.peak_memory_bytes,
            memory_enforced_by=self._tree.enforcement,
        )

    def _init_alive(self) -> bool:
        if self._init_fd is None:
            return False
        watch = select.poll()  # not `select`, which knows no descriptor above 1023
        watch.register(self._init_fd, select.POLLIN)
        return not watch.poll(0)

    async def _removed(self) -> bool:
        for _ in range(200):
            if self._tree.remove():
                return True
            await asyncio.sleep(0.005)
        return False
