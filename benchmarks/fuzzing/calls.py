"""Sends messages by gRPC, many at once, and holds each answer against what an answer may be."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from fuzzing.messages import LIMIT_BYTES, draw
from kernelevo_api.errors import DETAILS_KEY

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from fuzzing.messages import Sent

PATIENCE_S = 120.0
"""How long an answer may take before the server counts as stuck: a busy machine is slow, not wrong."""
FAULTS_KEPT = 20
CLEAR = frozenset(
    {
        grpc.StatusCode.OK,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)
"""What tells a caller what to do. UNKNOWN and INTERNAL do not; UNAVAILABLE is the server's own fault, or its end; a deadline that
passes is a server that is stuck."""


@dataclass
class Tally:
    """What came of the messages."""

    tried: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    """The first few answers that are not what an answer may be, each with how to make its message again."""
    faulty: int = 0
    cut_off: list[int] = field(default_factory=list)
    """Messages that were being answered when the server ended."""

    def note(self, sent: Sent, number: str, status: str, fault: str) -> None:
        """One message more, and what is wrong with its answer; empty where nothing is."""
        self.tried += 1
        self.kinds[sent.how] += 1
        self.statuses[status] += 1
        if fault:
            self.faulty += 1
            if len(self.faults) < FAULTS_KEPT:
                start = sent.data[:200].hex()
                self.faults.append(f"message {number} ({sent.how}) to {sent.method.path}: {fault}; begins with {start}")


def message(seed: int, number: int) -> Sent:
    """The message of this number: always the same one."""
    return draw(random.Random(f"{seed}/{number}"))


async def send_all(
    address: str,
    seed: int,
    numbers: Iterable[int],
    tally: Tally,
    lives: Callable[[], Awaitable[bool]],
    *,
    at_once: int = 32,
    channels: int = 4,
) -> None:
    """Send the messages of these numbers, until the server ends.

    Args:
        address: a target of gRPC, in plain text.
        tally: gets what came of them.
        lives: whether the server is there; asked when it cannot be reached.
        at_once: calls in flight.
    """
    waiting = iter(numbers)
    # One connection each, and messages that are longer than the server takes leave this side.
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", 2 * LIMIT_BYTES)]
    opened = [grpc.aio.insecure_channel(address, options=options) for _ in range(channels)]

    async def send(channel: grpc.aio.Channel) -> None:
        for number in waiting:
            sent = message(seed, number)
            leave = random.Random(f"{seed}/{number}/leave").random() < 0.05
            status, fault = await _send(channel, sent, leave)
            if status == grpc.StatusCode.UNAVAILABLE.name and not await lives():
                tally.cut_off.append(number)
                tally.tried += 1
                return
            tally.note(sent, f"{seed}/{number}", status, fault)

    try:
        async with asyncio.TaskGroup() as group:
            for index in range(at_once):
                group.create_task(send(opened[index % channels]))
    finally:
        for channel in opened:
            await channel.close()


async def _send(channel: grpc.aio.Channel, sent: Sent, leave: bool) -> tuple[str, str]:
    """The status of one call, and what is wrong with it."""
    method = sent.method
    if method.streams_in:
        call: Any = channel.stream_stream(method.path)(iter([sent.data]), timeout=PATIENCE_S)
    else:
        # Unary answers are streams of one: the bytes on the wire are the same.
        call = channel.unary_stream(method.path)(sent.data, timeout=PATIENCE_S)
    answers: list[bytes] = []
    try:
        async for answer in call:
            answers.append(answer)
            if leave or method.endless:
                call.cancel()
                break
        code = await call.code()
        details = await call.details()
        trailing = await call.trailing_metadata()
    except grpc.aio.AioRpcError as error:
        code, details, trailing = error.code(), error.details(), error.trailing_metadata()
    fault = _unreadable(method.answer, answers)
    if code is grpc.StatusCode.CANCELLED and answers and (leave or method.endless):
        return "left", fault
    if code not in CLEAR:
        fault = fault or f"{code.name}: {details}"
    elif code is not grpc.StatusCode.OK and method.path.startswith("/kernelevo"):
        fault = fault or _without_reason(code, trailing, details)
    return code.name, fault


def _unreadable(kind: type[Any], answers: list[bytes]) -> str:
    for answer in answers:
        try:
            kind.FromString(answer)
        except ValueError as error:
            return f"an answer that is no {kind.DESCRIPTOR.name}: {error}"
    return ""


def _without_reason(code: grpc.StatusCode, trailing: Any, details: str | None) -> str:
    """A status of ours names its reason. gRPC's own word for a message beyond the limit is the one exception."""
    for key, value in trailing or ():
        if key == DETAILS_KEY:
            status = status_pb2.Status.FromString(value)
            info = error_details_pb2.ErrorInfo()
            if any(detail.Unpack(info) and info.reason for detail in status.details):
                return ""
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in (details or ""):
        return ""
    return f"{code.name} without a reason: {details}"
