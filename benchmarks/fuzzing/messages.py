"""Requests that are valid, and what becomes of them: other values, other shapes, other bytes.

Everything is drawn from the generator that is given, so that a seed tells a message. Knows nothing of how it is sent.
"""

from __future__ import annotations

import math
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpc_health.v1 import health_pb2  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection_pb2  # type: ignore[import-untyped]

from kernelevo_api.evaluator.v1 import evaluator_pb2 as pb

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from google.protobuf.descriptor import FieldDescriptor
    from google.protobuf.message import Message

LIMIT_BYTES = 16 << 20
"""The longest message that a server of ours takes, by its documentation."""
PROBLEM = """\
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x + 1


def get_inputs():
    return [torch.rand(8)]


def get_init_inputs():
    return []


KERNELEVO = {"dtype": "float32", "tolerance": {"rtol": 1e-3}, "shapes": []}
"""
CANDIDATE = """\
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return x + 1
"""
_TEXTS = (
    "",
    "x",
    "\0",
    "\x7f\x1b[2J",
    "é" * 500,
    "\U0010ffff",
    "a" * 70_000,
    "../../../../etc/passwd",
    "'; DROP TABLE evaluations; --",
    "{}%s%n",
    "0" * 64,
    "f" * 64,
    "00000000-0000-0000-0000-000000000000",
    "WzEsICIiXQ==",
    "W1tbW1tb",
)
_SOURCES = (
    "(" * 5000,
    "-" * 20_000 + "1",
    "a" + ".b" * 20_000,
    "x = " + "[" * 90 + "]" * 90,
    "KERNELEVO = " + "{'a':" * 80 + "1" + "}" * 80,
    "KERNELEVO = {'shapes': [{'n': " + "9" * 5000 + "}]}",
    "KERNELEVO = {'dtype': 1e999, 'tolerance': {'rtol': -1}}",
    "KERNELEVO = {[]: 1}",
    "KERNELEVO = -" + "-" * 2000 + "1",
    "def f(:\n",
    "\ufeff# coding: nonsense\n",
    "x = '\\ud800'\n",
    "if 1:\n" * 120 + "pass",
    "1 if 1 else " * 3000 + "1",
    "f'" + "{x}" * 2000 + "'",
    "\r\f\x0b" * 100,
    "x = [" + "1," * 30_000 + "]",
)
_NUMBERS = (
    0,
    1,
    -1,
    2,
    127,
    128,
    255,
    1000,
    1001,
    2**31 - 1,
    -(2**31),
    2**32 - 1,
    2**53,
    2**63 - 1,
    -(2**63),
    2**64 - 1,
)
_FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-320, 1e308, math.inf, -math.inf, math.nan)
_WIRE_VARINT, _WIRE_64, _WIRE_BYTES, _WIRE_GROUP, _WIRE_GROUP_END, _WIRE_32, _WIRE_NONE = range(7)


@dataclass(frozen=True, slots=True)
class Method:
    """A method of the server, and how to ask it for something that makes sense."""

    path: str
    make: Callable[[random.Random], Message]
    answer: type[Any]
    """Message type of each response."""
    streams_in: bool = False
    endless: bool = False
    """Its stream of responses ends when the client ends it."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One message to one method."""

    method: Method
    data: bytes
    how: str
    """Which kind of change made it."""


def _service(name: str) -> str:
    return f"/{pb.DESCRIPTOR.package}.EvaluatorService/{name}"


def _uuid(rng: random.Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def _known(rng: random.Random) -> str:
    # A few ids that come again: requests join, replay and contradict one another.
    return str(uuid.UUID(int=rng.randrange(40), version=4)) if rng.random() < 0.4 else _uuid(rng)


def _problem(rng: random.Random) -> pb.Problem:
    # A handful of problems, so that what a server keeps of them does not grow with the count of messages.
    return pb.Problem(source=PROBLEM + f"# {rng.randrange(8)}\n", name="fuzz")


def _evaluate(rng: random.Random) -> pb.EvaluateRequest:
    request = pb.EvaluateRequest(
        request_id=_known(rng),
        problem=_problem(rng),
        candidate=pb.Candidate(source=CANDIDATE + f"# {rng.randrange(50)}\n"),
        effort=rng.choice([pb.EFFORT_UNSPECIFIED, pb.EFFORT_SCREEN, pb.EFFORT_FULL, pb.EFFORT_FINAL]),
        client_id=f"client {rng.randrange(5)}",
        fresh=rng.random() < 0.2,
    )
    if rng.random() < 0.3:
        request.limits.build_time.seconds = 30
        request.limits.memory_bytes = 1 << 28
    if rng.random() < 0.2:
        request.device.kind = pb.DEVICE_KIND_CPU
    if rng.random() < 0.2:
        request.baseline = pb.BASELINE_KIND_CANDIDATE
        request.baseline_candidate.source = CANDIDATE
    return request


def _list(rng: random.Random) -> pb.ListEvaluationsRequest:
    return pb.ListEvaluationsRequest(page_size=rng.choice([0, 1, 3, 20]))


def _health(rng: random.Random) -> Any:
    return health_pb2.HealthCheckRequest(service=rng.choice(["", "liveness", "nobody"]))


def _reflection(rng: random.Random) -> Any:
    kind = rng.randrange(5)
    request = reflection_pb2.ServerReflectionRequest(host="x")
    if kind == 0:
        request.list_services = ""
    elif kind == 1:
        request.file_by_filename = "kernelevo_api/evaluator/v1/evaluator.proto"
    elif kind == 2:
        request.file_containing_symbol = "kernelevo.evaluator.v1.EvaluatorService"
    elif kind == 3:
        request.file_containing_extension.containing_type = "google.protobuf.FieldOptions"
        request.file_containing_extension.extension_number = rng.choice(_NUMBERS[:10])
    else:
        request.all_extension_numbers_of_type = "google.protobuf.FieldOptions"
    return request


METHODS = (
    Method(_service("GetCapabilities"), lambda rng: pb.GetCapabilitiesRequest(), pb.GetCapabilitiesResponse),
    Method(
        _service("RegisterProblem"),
        lambda rng: pb.RegisterProblemRequest(
            problem=_problem(rng), accept_refused=rng.random() < 0.5, client_id="f", with_seeds=rng.random() < 0.2
        ),
        pb.RegisterProblemResponse,
    ),
    Method(_service("Evaluate"), _evaluate, pb.EvaluateResponse),
    Method(
        _service("GetEvaluation"), lambda rng: pb.GetEvaluationRequest(request_id=_known(rng)), pb.GetEvaluationResponse
    ),
    Method(_service("ListEvaluations"), _list, pb.ListEvaluationsResponse),
    Method(
        _service("CancelEvaluation"),
        lambda rng: pb.CancelEvaluationRequest(request_id=_known(rng), client_id=f"client {rng.randrange(5)}"),
        pb.CancelEvaluationResponse,
    ),
    Method("/grpc.health.v1.Health/Check", _health, health_pb2.HealthCheckResponse),
    Method("/grpc.health.v1.Health/Watch", _health, health_pb2.HealthCheckResponse, endless=True),
    Method(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        _reflection,
        reflection_pb2.ServerReflectionResponse,
        streams_in=True,
    ),
)


def draw(rng: random.Random) -> Sent:
    """One message: a valid one, or one that a change or several were made to."""
    method = rng.choices(METHODS, weights=[2, 4, 8, 3, 2, 3, 1, 1, 1])[0]
    message = method.make(rng)
    kind = rng.choices(
        ["valid", "values", "bytes", "wire types", "garbage", "nested", "large", "oversized"],
        weights=[8, 40, 25, 12, 8, 5, 0.4, 0.1],
    )[0]
    if kind == "valid":
        return Sent(method, message.SerializeToString(), kind)
    if kind == "garbage":
        return Sent(method, rng.randbytes(rng.choice([0, 1, 2, 5, 50, 500, 5000])), kind)
    if kind == "nested":
        return Sent(method, message.SerializeToString() + _nested(rng, message), kind)
    if kind in ("large", "oversized"):
        size = rng.randrange(1 << 20, 3 << 20) if kind == "large" else LIMIT_BYTES + rng.randrange(1, 1000)
        return Sent(method, message.SerializeToString() + _large(rng, message, size), kind)
    if kind == "wire types":
        return Sent(method, message.SerializeToString() + _wrong_types(rng, message), kind)
    for _ in range(rng.choice([1, 1, 1, 2, 3, 8])):
        change_value(rng, message)
    data = message.SerializeToString()
    return Sent(method, change_bytes(rng, data) if kind == "bytes" else data, kind)


def change_value(rng: random.Random, message: Any) -> None:
    """Set one field of a message, or of a message inside, to something that is legal on the wire; or take it out."""
    fields = message.DESCRIPTOR.fields
    if not fields:
        return
    field: FieldDescriptor = rng.choice(fields)
    if rng.random() < 0.15:
        message.ClearField(field.name)
    elif field.type == field.TYPE_MESSAGE:
        inner = getattr(message, field.name)
        if field.is_repeated:
            for _ in range(rng.choice([1, 1, 3, 100])):
                change_value(rng, inner.add())
        else:
            inner.SetInParent()
            change_value(rng, inner)
    elif field.is_repeated:
        getattr(message, field.name).extend([_value(rng, field) for _ in range(rng.choice([1, 1, 3, 1000]))])
    else:
        setattr(message, field.name, _value(rng, field))


def _value(rng: random.Random, field: FieldDescriptor) -> Any:
    match field.type:
        case field.TYPE_STRING:
            if field.name == "source" and rng.random() < 0.7:
                return rng.choice([PROBLEM, ""]) + rng.choice(_SOURCES)
            return rng.choice(_TEXTS)
        case field.TYPE_BYTES:
            return rng.randbytes(rng.randrange(100))
        case field.TYPE_BOOL:
            return rng.random() < 0.5
        case field.TYPE_DOUBLE | field.TYPE_FLOAT:
            return rng.choice(_FLOATS)
        case field.TYPE_INT64 | field.TYPE_SINT64 | field.TYPE_SFIXED64:
            return rng.choice([one for one in _NUMBERS if -(2**63) <= one < 2**63])
        case field.TYPE_UINT64 | field.TYPE_FIXED64:
            return rng.choice([one for one in _NUMBERS if 0 <= one < 2**64])
        case field.TYPE_UINT32 | field.TYPE_FIXED32:
            return rng.choice([one for one in _NUMBERS if 0 <= one < 2**32])
        case _:  # Enums take any number of 32 bits.
            return rng.choice([one for one in _NUMBERS if -(2**31) <= one < 2**31])


def change_bytes(rng: random.Random, data: bytes) -> bytes:
    """Flip, take out, put in, repeat, cut: a few of these at random places."""
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 5, 20])):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(5):
            case 0 if at < len(changed):
                changed[at] ^= 1 << rng.randrange(8)
            case 1:
                del changed[at : at + rng.randrange(1, 9)]
            case 2:
                changed[at:at] = rng.choice([b"\xff" * 10, b"\0", b"\x80" * 9 + b"\x01", rng.randbytes(4)])
            case 3:
                changed[at:at] = changed[at : at + rng.randrange(1, 40)]
            case _:
                del changed[max(at, len(changed) // 2) :]
    return bytes(changed)


def _varint(value: int) -> bytes:
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])


def _tag(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _block(number: int, data: bytes) -> bytes:
    return _tag(number, _WIRE_BYTES) + _varint(len(data)) + data


def _number(rng: random.Random, message: Any) -> int:
    known = [field.number for field in message.DESCRIPTOR.fields]
    return int(rng.choice([*known, 999, 19_000, (1 << 29) - 1]))


def _wrong_types(rng: random.Random, message: Any) -> bytes:
    """Fields of the right numbers and another wire type, packed scalars, groups that do not end."""
    parts = []
    for _ in range(rng.choice([1, 2, 5])):
        number = _number(rng, message)
        parts.append(
            rng.choice(
                [
                    _tag(number, _WIRE_VARINT) + b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
                    _tag(number, _WIRE_64) + rng.randbytes(8),
                    _tag(number, _WIRE_32) + rng.randbytes(4),
                    _block(number, rng.randbytes(rng.randrange(20))),
                    _tag(number, _WIRE_GROUP),
                    _tag(number, _WIRE_GROUP_END),
                    _tag(number, _WIRE_NONE),
                    _tag(number, _WIRE_BYTES) + b"\xff\xff\xff\xff\x7f",
                ]
            )
        )
    return b"".join(parts)


def _nested(rng: random.Random, message: Any) -> bytes:
    """Blocks in blocks or groups in groups, far beyond what anybody writes."""
    depth = rng.choice([50, 99, 101, 1000, 20_000])
    number = _number(rng, message)
    if rng.random() < 0.5:
        return _tag(number, _WIRE_GROUP) * depth + _tag(number, _WIRE_GROUP_END) * depth
    data = b""
    for _ in range(min(depth, 1000)):
        data = _block(number, data)
    return data


def _large(rng: random.Random, message: Any, size: int) -> bytes:
    """One field, known or not, that is `size` bytes long."""
    filler = rng.choice([b"a", b"(", b"\n", b"1,", b"\0"])
    return _block(_number(rng, message), (filler * (size // len(filler) + 1))[:size])
