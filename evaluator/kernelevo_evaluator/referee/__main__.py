"""Entry of the referee's process: one job at a time from the server, on the descriptor named by the first argument."""

from __future__ import annotations

import gc
import os
import socket
import sys
import traceback
from typing import TYPE_CHECKING

import msgspec
import torch

from kernelevo_api.types import BaselineKind, Effort, Language, Limits, ProblemPolicy, ProblemReport, RaisedError
from kernelevo_evaluator.channel import Channel, ChannelClosed
from kernelevo_evaluator.messages.codec import COMMAND_LIMIT
from kernelevo_evaluator.messages.referee import (
    AttachProblem,
    AuditProblem,
    DropProblem,
    EvaluateCandidate,
    Finished,
    ProbeDevice,
    decode_to_referee,
)
from kernelevo_evaluator.referee import machine
from kernelevo_evaluator.referee.audit import Audit
from kernelevo_evaluator.referee.evaluate import Evaluation
from kernelevo_evaluator.referee.host import Host
from kernelevo_evaluator.referee.outcome import Decided, Outcome
from kernelevo_evaluator.referee.reference import Reference, attach
from kernelevo_evaluator.referee.request import Request
from kernelevo_evaluator.referee.spaces import DeviceSpace, HostSpace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelevo_evaluator.referee.spaces import Space


class Referee:
    """The jobs of one lane. Problems stay attached until they are dropped."""

    def __init__(self, channel: Channel, device: str, timed_core: int | None) -> None:
        self._channel = channel
        self._host = Host(channel)
        self._references: dict[str, tuple[Reference, str]] = {}
        self._space: Space = (
            DeviceSpace(timed_core) if device == "cuda" else HostSpace(machine.last_level_cache_bytes())
        )
        self.facts = machine.measure(self._space)

    def serve(self) -> None:
        """Say what the machine can do, then carry jobs out until the channel closes."""
        self._host.finish(Finished(ok=True, payload=msgspec.msgpack.encode(self.facts)))
        while True:
            try:
                data, fds = self._channel.receive_with_fds()
            except ChannelClosed:
                return
            sockets = [socket.socket(fileno=fd) for fd in fds]
            try:
                self._host.finish(Finished(ok=True, payload=self._carry_out(data, sockets)))
            except ChannelClosed:
                return
            except Exception:  # a fault of the referee's own: reported, never taken for a verdict
                for sock in sockets:
                    sock.close()
                self._host.finish(Finished(ok=False, error=traceback.format_exc()[-8000:]))

    def _carry_out(self, data: bytes, sockets: Sequence[socket.socket]) -> bytes:
        message = decode_to_referee(data)
        if isinstance(message, AttachProblem):
            return self._attach(message, sockets[0])
        if isinstance(message, DropProblem):
            entry = self._references.pop(message.digest, None)
            if entry is not None:
                entry[0].close()
            return b""
        if isinstance(message, AuditProblem):
            return self._audit(message)
        if isinstance(message, EvaluateCandidate):
            return self._evaluate(message, sockets)
        if isinstance(message, ProbeDevice):
            machine.probe(self._space)
            return b""
        raise TypeError(f"{type(message).__name__} is no job")

    def _attach(self, message: AttachProblem, sock: socket.socket) -> bytes:
        policy = msgspec.msgpack.decode(message.policy, type=ProblemPolicy)
        try:
            reference = attach(sock, self._host, message.source, policy, self._space, message.seconds)
        except Decided as decided:
            return _failure(decided)
        self._references[message.digest] = (reference, message.source)
        return b""

    def _audit(self, message: AuditProblem) -> bytes:
        reference, _ = self._references[message.digest]
        try:
            report = Audit(reference, self._host, message.digest, message.name, message.seconds).carry_out(
                self.facts.read_gb_per_s
            )
        except Decided as decided:
            return _failure(decided)
        return msgspec.msgpack.encode(report)

    def _evaluate(self, message: EvaluateCandidate, sockets: Sequence[socket.socket]) -> bytes:
        reference, source = self._references[message.digest]
        request = Request(
            source=source,
            report=msgspec.msgpack.decode(message.report, type=ProblemReport),
            limits=msgspec.msgpack.decode(message.limits, type=Limits),
            effort=Effort(message.effort),
            baseline=BaselineKind(message.baseline),
            interpreter=message.interpreter,
            skip_timing=message.skip_timing,
            bound_speedup=message.bound_speedup,
            language=Language(message.language),
            profile=message.profile,
            deep=message.deep,
        )
        baseline = sockets[1] if len(sockets) > 1 else None
        outcome = Evaluation(self._host, reference, request, self.facts, sockets[0], baseline).carry_out()
        return msgspec.msgpack.encode(outcome)


def _failure(decided: Decided) -> bytes:
    """An attachment or an audit that ended early, as an outcome."""
    return msgspec.msgpack.encode(
        Outcome(
            verdict=decided.verdict,
            stage=decided.stage,
            message=decided.message,
            limit=decided.limit,
            error=decided.error or RaisedError(type="", message=decided.message),
            sandbox_ending=decided.ending,
            code=decided.code,
        )
    )


def main() -> None:
    """Arguments: the channel's descriptor, the number of torch's threads, "cpu" or "cuda", the core that is timed or "-"."""
    torch.set_num_threads(int(sys.argv[2]))
    timed_core = int(sys.argv[4]) if sys.argv[4] != "-" else None
    referee = Referee(Channel(socket.socket(fileno=int(sys.argv[1])), COMMAND_LIMIT), sys.argv[3], timed_core)
    # A collection looks at what came later alone: with all of torch's objects it takes 50 ms, of what is being timed.
    gc.freeze()
    referee.serve()
    os._exit(0)


if __name__ == "__main__":
    main()
