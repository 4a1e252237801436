"""From the plain values of `kernelevo_api.types` to protobuf messages and back, by field name.

One generic mapping, planned once for each type: enums by name (the zero value is `None`), `Duration` to `timedelta`, `Timestamp`
to an aware UTC `datetime`, repeated fields to tuples, fields with presence to `None` where they are absent. Nothing here
knows a single field, so that a new one needs a line in `evaluator.proto` and one in `types/`; a test holds the two together.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types as pytypes
import typing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from kernelevo_api import types
from kernelevo_api.evaluator.v1 import evaluator_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.descriptor import EnumDescriptor
    from google.protobuf.message import Message

T = TypeVar("T")

MESSAGE_OF: dict[type[Any], type[Message]] = {
    value: getattr(evaluator_pb2, {"Capabilities": "GetCapabilitiesResponse"}.get(value.__name__, value.__name__))
    for value in vars(types).values()
    if isinstance(value, type) and dataclasses.is_dataclass(value)
}
"""The message that each dataclass stands for."""

_PLANS: dict[type[Any], tuple[_Field, ...]] = {}
_MEMBERS: dict[type[Any], dict[int, Any]] = {}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class WireError(ValueError):
    """A message that lacks what its plain value needs, e.g. an evaluation without a verdict."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Field:
    name: str
    repeated: bool
    presence: bool
    """Absent is told apart from the zero value."""
    required: bool
    """The plain value has no way to say that it is absent."""
    write: Callable[[Any, Message], None] | None
    """Fills a message that stands for one value; `None` where `encode` gives a scalar."""
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def to_message(value: Any) -> Message:
    """The message that says the same as `value`, a dataclass of `kernelevo_api.types`.

    Raises:
        ValueError: a number is out of its field's range, or a text holds lone surrogates.
        TypeError: a field holds a value of another type.
    """
    message = MESSAGE_OF[type(value)]()
    _fill(value, message)
    return message


def from_message(message: Message, kind: type[T]) -> T:
    """The `kind` that says the same as `message`.

    Enum values that this version does not know become `None`, so that an older client reads a newer server.

    Raises:
        WireError: a required field is absent.
    """
    if not isinstance(message, MESSAGE_OF[kind]):
        raise TypeError(f"{type(message).__name__} is not what {kind.__name__} stands for")
    return kind(**_read(message, _plan(kind)))


def enum_to_number(member: enum.Enum) -> int:
    """The wire's number for an enum member."""
    descriptor = _enum_descriptor(type(member))
    return int(descriptor.values_by_name[_prefix(descriptor) + member.name].number)


def enum_from_number(kind: type[T], number: int) -> T | None:
    """The member of the enum `kind` for a number; `None` for the unspecified one and for numbers not known here."""
    return typing.cast("T | None", _members(kind).get(number))


def _fill(value: Any, message: Message) -> None:
    for field in _plan(type(value)):
        item = getattr(value, field.name)
        if item is None:
            continue
        if field.repeated:
            target = getattr(message, field.name)
            if field.write is None:
                target.extend([field.encode(one) for one in item])
            else:
                for one in item:
                    field.write(one, target.add())
        elif field.write is None:
            setattr(message, field.name, field.encode(item))
        else:
            part = getattr(message, field.name)
            part.SetInParent()
            field.write(item, part)


def _read(message: Message, plan: tuple[_Field, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in plan:
        if field.repeated:
            decoded = (field.decode(one) for one in getattr(message, field.name))
            found[field.name] = tuple(one for one in decoded if one is not None)
            continue
        absent = field.presence and not message.HasField(field.name)
        item = None if absent else field.decode(getattr(message, field.name))
        if item is None and field.required:
            raise WireError(f"{type(message).__name__} without a {field.name}")
        found[field.name] = item
    return found


def _plan(kind: type[Any]) -> tuple[_Field, ...]:
    plan = _PLANS.get(kind)
    if plan is None:
        plan = _PLANS[kind] = _make_plan(kind)
    return plan


def _make_plan(kind: type[Any]) -> tuple[_Field, ...]:
    hints = typing.get_type_hints(kind)
    descriptor = MESSAGE_OF[kind].DESCRIPTOR
    return tuple(
        _plan_field(hints[field.name], descriptor.fields_by_name[field.name]) for field in dataclasses.fields(kind)
    )


def _plan_field(hint: Any, descriptor: Any) -> _Field:
    optional = isinstance(hint, pytypes.UnionType) and pytypes.NoneType in hint.__args__
    if optional:
        (hint,) = (one for one in hint.__args__ if one is not pytypes.NoneType)
    repeated = typing.get_origin(hint) is tuple
    if repeated:
        hint = typing.get_args(hint)[0]
    presence = bool(descriptor.has_presence) and not repeated
    write: Callable[[Any, Message], None] | None = None
    encode: Callable[[Any], Any] = hint
    decode: Callable[[Any], Any] = hint
    if hint is timedelta:
        write, decode = _write_duration, _read_duration
    elif hint is datetime:
        write, decode = _write_timestamp, _read_timestamp
    elif dataclasses.is_dataclass(hint):
        write, decode = _fill, functools.partial(_read_part, typing.cast("type[Any]", hint))
    elif issubclass(hint, enum.Enum):
        encode, decode = enum_to_number, functools.partial(enum_from_number, hint)
    elif hint in (str, bool, int):
        encode = _identity  # protobuf checks these itself, and more strictly than a conversion would
    return _Field(
        name=descriptor.name,
        repeated=repeated,
        presence=presence,
        required=not optional and not repeated and (presence or issubclass(hint, enum.Enum)),
        write=write,
        encode=encode,
        decode=decode,
    )


def _identity(value: T) -> T:
    return value


def _read_part(kind: type[T], message: Message) -> T:
    return kind(**_read(message, _plan(kind)))


def _write_duration(value: timedelta, message: Any) -> None:
    message.FromTimedelta(value)


def _read_duration(message: Any) -> timedelta:
    return typing.cast("timedelta", message.ToTimedelta())


def _write_timestamp(value: datetime, message: Any) -> None:
    if value.tzinfo is None:
        raise TypeError("a timestamp without a time zone")
    # Whole microseconds: the float that `timestamp()` gives would round.
    microseconds = (value - _EPOCH) // _MICROSECOND
    message.seconds, rest = divmod(microseconds, 1_000_000)
    message.nanos = rest * 1000


def _read_timestamp(message: Any) -> datetime:
    return _EPOCH + timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)


def _enum_descriptor(kind: type[Any]) -> EnumDescriptor:
    return evaluator_pb2.DESCRIPTOR.enum_types_by_name[kind.__name__]


def _prefix(descriptor: EnumDescriptor) -> str:
    return descriptor.values_by_number[0].name.removesuffix("UNSPECIFIED")


def _members(kind: type[Any]) -> dict[int, Any]:
    members = _MEMBERS.get(kind)
    if members is None:
        members = _MEMBERS[kind] = {enum_to_number(member): member for member in kind}
    return members
