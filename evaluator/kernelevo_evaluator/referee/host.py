"""What the referee asks of the server: it alone holds the sandboxes."""

from __future__ import annotations

import socket
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from kernelevo_api.types import SandboxEnding, Stage
from kernelevo_evaluator.messages.codec import encode
from kernelevo_evaluator.messages.referee import Finished, HostCall, HostReply, decode_to_referee
from kernelevo_evaluator.referee.waiting import waited_us
from kernelevo_sandbox.freezer import Freezer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernelevo_evaluator.channel import Channel


_FREEZE_SECONDS = 0.25
"""After so long the server is asked to freeze: it knows what to do with a tree that does not stop."""
_FREEZE_SPIN_SECONDS = 0.002


class HostFault(Exception):
    """The server could not do what was asked: a fault of the evaluator's own."""


@dataclass(slots=True)
class Host:
    """The server, as the referee sees it during one job. Runners are "reference", "candidate" and "baseline"."""

    channel: Channel
    _pending: list[HostCall] = field(default_factory=list)
    _freezers: dict[str, Freezer] = field(default_factory=dict)
    _frozen: set[str] = field(default_factory=set)
    _processes: dict[str, list[int]] = field(default_factory=dict)

    def _send(self, call: HostCall) -> None:
        self.settle()
        self.channel.send(encode(call))

    def _call(self, call: HostCall) -> tuple[bytes, list[int]]:
        self._send(call)
        return self._reply(call)

    def _call_soon(self, call: HostCall) -> None:
        """A call whose answer `settle`, or the next call, takes."""
        self._send(call)
        self._pending.append(call)

    def _reply(self, call: HostCall) -> tuple[bytes, list[int]]:
        data, fds = self.channel.receive_with_fds()
        reply = decode_to_referee(data)
        if not isinstance(reply, HostReply):
            raise HostFault(f"the server said {type(reply).__name__} where an answer to {call.what} was due")
        if not reply.ok:
            raise HostFault(reply.error)
        return reply.payload, fds

    def freeze(self, runner: str) -> None:
        """Stop every process of a runner's sandbox; returns when none can run."""
        if not self._frozen_here(runner):
            self._call(HostCall(what="freeze", runner=runner))
        self._frozen.add(runner)

    def _frozen_here(self, runner: str) -> bool:
        """Whether it could be frozen by its freezer, in the time that this takes as a rule."""
        freezer = self._freezers.get(runner)
        if freezer is None:
            return False
        self.settle()
        began = time.monotonic()
        while not freezer.freeze():
            waited = time.monotonic() - began
            if waited > _FREEZE_SECONDS:
                return False
            if waited > _FREEZE_SPIN_SECONDS:
                # Who is to stop may need this core to do so.
                time.sleep(0.0002)
        return True

    def thaw(self, runner: str) -> None:
        """Undo `freeze`."""
        freezer = self._freezers.get(runner)
        if freezer is not None:
            self.settle()
            freezer.thaw()
        else:
            self._call(HostCall(what="thaw", runner=runner))
        self._frozen.discard(runner)

    @contextmanager
    def running(self, runner: str) -> Iterator[None]:
        """Let a runner run for a while, and freeze it again if it was frozen."""
        frozen = runner in self._frozen
        if frozen:
            self.thaw(runner)
        try:
            yield
        finally:
            if frozen:
                self.freeze(runner)

    def take_freezer(self, runner: str) -> None:
        """Freeze this runner, and get what it is thawed and frozen with from here on without a call, where the host has that."""
        self.freeze(runner)
        payload, fds = self._call(HostCall(what="freezer", runner=runner))
        self._processes[runner] = msgspec.msgpack.decode(payload, type=list[int])
        if fds:
            self._freezers[runner] = Freezer(*fds)

    def drop_freezer(self, runner: str) -> None:
        """Give it back, and let the runner run."""
        freezer = self._freezers.pop(runner, None)
        if freezer is not None:
            freezer.close()
        self.thaw(runner)

    def waited_us(self, runner: str, *, first_only: bool) -> float:
        """Microseconds that threads of a runner, whose freezer was taken, have waited for a core; 0 where that is not known.

        `first_only`: only those that call the model.
        """
        return waited_us(self._processes.get(runner, ()), first_only=first_only) or 0.0

    def thaw_soon(self, runner: str) -> None:
        """Thaw without waiting: by the runner's freezer, or else by a call whose answer `settle` (or the next call) takes."""
        self._frozen.discard(runner)
        freezer = self._freezers.get(runner)
        if freezer is not None:
            freezer.thaw()
        else:
            self._call_soon(HostCall(what="thaw", runner=runner))

    def settle(self) -> None:
        """Take the answer that `thaw_soon` did not wait for."""
        while self._pending:
            self._reply(self._pending.pop())

    def quiet(self) -> None:
        """Freeze everything else of the evaluator's that could disturb a timing on this lane's cores: builds, spares."""
        self._call(HostCall(what="quiet"))

    def loud(self) -> None:
        """Undo `quiet`."""
        self._call(HostCall(what="loud"))

    def kill_soon(self, runner: str) -> None:
        """End a runner's sandbox; its processes are gone when `settle` (or the next call) returns."""
        self._call_soon(HostCall(what="kill", runner=runner))
        self._frozen.discard(runner)

    def ended(self, runner: str) -> SandboxEnding:
        """How a runner whose channel closed has ended; it is killed if it lives on without its channel."""
        payload, _ = self._call(HostCall(what="ended", runner=runner))
        return msgspec.msgpack.decode(payload, type=SandboxEnding)

    def fresh(self, runner: str, tool: str = "") -> socket.socket:
        """Another runner with the same module loaded, in place of the one of that name, which is killed.

        Args:
            tool: what it is started under ("memcheck", "racecheck" or "ncu"); its words come by `report`.

        Raises:
            HostFault: with a tool alone: it is not there, or the runner did not come up under it.
        """
        _, fds = self._call(HostCall(what="fresh", runner=runner, tool=tool))
        self._frozen.discard(runner)
        return socket.socket(fileno=fds[0])

    def report(self, runner: str) -> str:
        """What a runner under a tool, and the tool, wrote until their end. The runner's channel is closed by then."""
        payload, _ = self._call(HostCall(what="report", runner=runner))
        return payload.decode("utf-8", "replace")

    def progress(self, stage: Stage, text: str) -> None:
        """Tell whoever watches where the job is. Advisory; no answer is awaited."""
        self.channel.send(encode(HostCall(what="progress", stage=stage.value, text=text)))

    def finish(self, result: Finished) -> None:
        """Hand the job's result over."""
        self.settle()
        self.channel.send(encode(result))
