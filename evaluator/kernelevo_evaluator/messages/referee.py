"""Between server and referee: both trusted."""

from __future__ import annotations

from typing import Any

import msgspec


class AttachProblem(msgspec.Struct, frozen=True, tag="attach"):
    """Take a reference runner (one descriptor), load the problem into it and keep it warm under its digest.

    `policy` is a contract type as MessagePack. The result is empty, or an `Outcome` that says why it cannot be.
    """

    digest: str
    source: str
    policy: bytes
    seconds: float


class DropProblem(msgspec.Struct, frozen=True, tag="drop"):
    """Forget a warm problem."""

    digest: str


class AuditProblem(msgspec.Struct, frozen=True, tag="audit"):
    """Audit an attached problem and time its baselines. The result is a `ProblemReport`, or the `Outcome` of a failed one."""

    digest: str
    name: str
    seconds: float


class EvaluateCandidate(msgspec.Struct, frozen=True, tag="evaluate"):
    """Check and time a loaded candidate (its runner's channel is the first descriptor; a baseline's the second)."""

    digest: str
    report: bytes
    limits: bytes
    effort: str
    baseline: str
    interpreter: bool
    skip_timing: bool
    bound_speedup: float | None = None
    language: str = "torch"
    profile: bool = False
    deep: bool = False
    """Whether a candidate that passes is called once more under each checking tool."""


class ProbeDevice(msgspec.Struct, frozen=True, tag="probe"):
    """Compute something known on the lane's device. The result is empty."""


class HostReply(msgspec.Struct, frozen=True, tag="host_reply"):
    """The server's answer to a `HostCall`."""

    ok: bool
    payload: bytes = b""
    error: str = ""


class GpuFacts(msgspec.Struct, frozen=True):
    """What the driver says of the lane's GPU, in bytes and counts."""

    architecture: str
    multiprocessors: int
    shared_memory_per_block_bytes: int
    shared_memory_per_multiprocessor_bytes: int
    registers_per_multiprocessor: int
    memory_bytes: int


class MachineFacts(msgspec.Struct, frozen=True):
    """What a referee measures once, when it starts. Rates in 1e9 bytes and 1e12 operations a second."""

    torch: str
    cache_bytes: int
    read_gb_per_s: float
    copy_gb_per_s: float
    rates: dict[str, float]
    """Dense multiply-add rate by dtype."""
    gpu: GpuFacts | None = None


ToReferee = AttachProblem | DropProblem | AuditProblem | EvaluateCandidate | ProbeDevice | HostReply


class HostCall(msgspec.Struct, frozen=True, tag="host"):
    """Something only the server can do: freeze, thaw, kill, ended, fresh, report, progress. `runner` names whom.

    `tool`: what a fresh runner is started under, for one that shall be watched.
    """

    what: str
    runner: str = ""
    text: str = ""
    stage: str = ""
    tool: str = ""


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """A job is done: its result as MessagePack, or the referee's own fault."""

    ok: bool
    payload: bytes = b""
    error: str = ""


FromReferee = HostCall | Finished

_to_referee: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ToReferee)
_from_referee: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(FromReferee)


def decode_to_referee(data: bytes) -> ToReferee:
    """A message of the server, inside the referee."""
    message: ToReferee = _to_referee.decode(data)
    return message


def decode_from_referee(data: bytes) -> FromReferee:
    """A message of the referee, inside the server."""
    message: FromReferee = _from_referee.decode(data)
    return message
