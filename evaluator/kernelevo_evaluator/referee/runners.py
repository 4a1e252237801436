"""A runner, as the referee speaks with it: one command, one answer, a deadline, and every way in which it can go wrong."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, TypeVar

from kernelevo_api.types import LimitKind, RaisedError, SandboxEnding, Stage, Verdict
from kernelevo_evaluator.channel import Channel, ChannelClosed, ChannelTimeout, FrameInvalid, FrameTooLong
from kernelevo_evaluator.messages.codec import REPLY_LIMIT, MessageInvalid, encode
from kernelevo_evaluator.messages.runner import Compiling, Done, Failed, Replay, Run, decode_reply
from kernelevo_evaluator.referee.compiles import Compiles
from kernelevo_evaluator.referee.outcome import Decided
from kernelevo_evaluator.verdicts import exhausted_memory, explain_ending

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from kernelevo_evaluator.messages.runner import Command, Reply
    from kernelevo_evaluator.referee.host import Host
    from kernelevo_evaluator.referee.spaces import Space

R = TypeVar("R")

_FAILURES = {
    "syntax": Verdict.COMPILE_ERROR,
    "import": Verdict.LOAD_ERROR,
    "construct": Verdict.LOAD_ERROR,
    "interface": Verdict.WRONG_INTERFACE,
    "runtime": Verdict.RUNTIME_ERROR,
    "memory": Verdict.OUT_OF_MEMORY,
}


class RunnerFailed(Exception):
    """User code in a runner failed; the runner itself lives on. What it says is a claim."""

    def __init__(self, failure: Failed) -> None:
        super().__init__(f"{failure.error}: {failure.message}")
        self.failure = failure


class Runner:
    """One runner. Failures of a candidate become its verdict; failures of a reference are a `PROBLEM_FAULT`."""

    def __init__(
        self, name: str, sock: socket.socket, host: Host, space: Space, *, blame: Verdict | None = None
    ) -> None:
        """`space`: where what it is lent lies.

        `blame`: the verdict for whatever goes wrong here, in place of the one that would fit a candidate."""
        self.name = name
        self.stage = Stage.PREPARE
        self.deadline: float | None = None
        self.limit = LimitKind.PREPARE_TIME
        self._channel = Channel(sock, REPLY_LIMIT)
        self._host = host
        self._space = space
        self._blame = blame
        self._compiles = Compiles()
        self.alive = True
        """False once the runner has ended, run out of time or broken the protocol: it is not asked again."""

    def enter(self, stage: Stage, seconds: float, limit: LimitKind) -> None:
        """Begin a stage with a time limit of its own."""
        self.stage = stage
        self.limit = limit
        self.deadline = time.monotonic() + seconds

    def allow_compiling(self, seconds: float) -> None:
        """Give it so long for compiling kernels, in all, beside the time of its stages."""
        self._compiles.seconds = seconds

    def spin(self, on: bool) -> None:
        """Whether to watch for answers without sleeping."""
        self._channel.spin = on

    def close(self) -> None:
        """Close the channel; the sandbox is the server's to end."""
        self._channel.close()

    def ask(
        self,
        command: Command,
        expect: type[R],
        fds: Sequence[int] = (),
        *,
        once_sent: Callable[[], None] | None = None,
    ) -> R:
        """Send a command and wait for its answer. `once_sent` is called in between: it may let a frozen runner run.

        Raises:
            RunnerFailed: user code failed.
            Decided: the runner ended, ran out of time, or broke the protocol.
        """
        payload = encode(command)
        # What the referee wrote into memory that the runner will read is there.
        self._space.synchronize()
        try:
            self._channel.send(payload, fds, self.deadline)
            if once_sent is not None:
                once_sent()
            while isinstance(reply := self._next(command.nonce), Compiling):
                self._turn(reply.kernel)
                # Who announces without a pause is never waited for, and its time is over all the same.
                if (until := self._compiles.deadline(self.deadline)) is not None and time.monotonic() > until:
                    raise ChannelTimeout("it only announces")
            if self._compiles.kernel:
                self._turn("")
        except ChannelClosed:
            raise self._gone() from None
        except ChannelTimeout:
            if self._compiles.limited:
                raise self._decided(
                    Verdict.TIMEOUT,
                    f"{self._whose} took longer than the limit of its builds to compile the kernel {self._compiles.kernel}",
                    limit=LimitKind.BUILD_TIME,
                ) from None
            raise self._decided(
                Verdict.TIMEOUT,
                f"{self._whose} did not finish within the limit of this stage ({self.limit.value.replace('_', ' ')})",
                limit=self.limit,
            ) from None
        except (FrameInvalid, MessageInvalid) as error:
            raise self._decided(
                Verdict.SANDBOX_VIOLATION,
                f"{self._whose} wrote on the result channel: {error}",
                limit=LimitKind.MESSAGE_SIZE if isinstance(error, FrameTooLong) else None,
            ) from error
        if isinstance(reply, Failed):
            raise RunnerFailed(reply)
        if not isinstance(reply, expect):
            raise self._decided(
                Verdict.SANDBOX_VIOLATION,
                f"{self._whose} answered {type(command).__name__} with {type(reply).__name__}",
            )
        return reply

    def must(
        self,
        command: Command,
        expect: type[R],
        fds: Sequence[int] = (),
        *,
        once_sent: Callable[[], None] | None = None,
    ) -> R:
        """As `ask`, a failure of user code being a verdict too."""
        try:
            return self.ask(command, expect, fds, once_sent=once_sent)
        except RunnerFailed as error:
            raise self.verdict_of(error.failure) from None

    def run(
        self,
        ring: int,
        slots: Sequence[int],
        once_sent: Callable[[], None] | None = None,
    ) -> Done:
        """Call the model on these slots of a ring."""
        return self.must(Run(nonce=nonce(), ring=ring, slots=tuple(slots)), Done, once_sent=once_sent)

    def replay(self, ring: int, calls: int, once_sent: Callable[[], None] | None = None) -> Done:
        """Replay what was captured of as many calls on a ring."""
        return self.must(Replay(nonce=nonce(), ring=ring, calls=calls), Done, once_sent=once_sent)

    def verdict_of(self, failure: Failed) -> Decided:
        """The verdict that a failure of user code deserves."""
        verdict = _FAILURES.get(failure.kind, Verdict.RUNTIME_ERROR)
        where = f" (line {failure.line})" if failure.line is not None else ""
        message = f"{failure.error}: {failure.message}{where}"
        if verdict is Verdict.WRONG_INTERFACE:
            message = failure.message
        limit = LimitKind(failure.limit) if failure.limit else None
        if verdict is Verdict.OUT_OF_MEMORY:
            limit = exhausted_memory(failure.error)
        return self._decided(
            verdict,
            message if self._blame is None else f"the reference failed: {message}",
            limit=limit,
            error=RaisedError(
                type=failure.error, message=failure.message, traceback=failure.traceback, line=failure.line
            ),
        )

    @property
    def _whose(self) -> str:
        return f"the {self.name}"

    def _next(self, nonce: int) -> Reply:
        """
        Raises:
            MessageInvalid: it answers something else.
        """
        reply = decode_reply(self._channel.receive(self._compiles.deadline(self.deadline)))
        # One command is open at a time, and a runner that let one go unanswered is not asked again: an answer to anything
        # else was made up in advance.
        if _nonce(reply) != nonce:
            raise MessageInvalid(f"{type(reply).__name__} in answer to nothing that was asked")
        return reply

    def _turn(self, kernel: str) -> None:
        passed = self._compiles.turn(kernel)
        self.deadline = None if self.deadline is None else self.deadline + passed

    def _gone(self) -> Decided:
        ending = self._host.ended(self.name)
        kernel = self._compiles.kernel
        whose = f"{self._whose}, while it compiled the kernel {kernel}," if kernel else self._whose
        verdict, limit, message = explain_ending(ending, whose)
        return self._decided(verdict, message, limit=limit, ending=ending)

    def _decided(
        self,
        verdict: Verdict,
        message: str,
        *,
        limit: LimitKind | None = None,
        error: RaisedError | None = None,
        ending: SandboxEnding | None = None,
    ) -> Decided:
        if error is None:
            self.alive = False
        code = verdict.value if self._blame is not None else ""
        stage = Stage.BUILD if error is None and self._compiles.kernel else self.stage
        return Decided(self._blame or verdict, stage, message, limit=limit, error=error, ending=ending, code=code)


def nonce() -> int:
    """A number that no runner can know in advance."""
    return secrets.randbits(62)


def _nonce(reply: Reply) -> int | None:
    return getattr(reply, "nonce", None)
