"""The mapping between plain values and messages: complete, and without loss."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import types as pytypes
import typing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelevo_api import types, wire
from kernelevo_api.evaluator.v1 import evaluator_pb2
from kernelevo_api.json import from_json, to_json
from kernelevo_api.types import Evaluation, Limits, Stage, Verdict

PLAIN = sorted(wire.MESSAGE_OF, key=lambda kind: kind.__name__)
ENUMS = [value for value in vars(types).values() if isinstance(value, type) and issubclass(value, enum.Enum)]
ENUMS = [value for value in ENUMS if value is not enum.Enum]
ENVELOPES = {
    "GetCapabilitiesRequest",
    "RegisterProblemResponse",
    "EvaluateResponse",
    "GetEvaluationRequest",
    "GetEvaluationResponse",
    "ListEvaluationsRequest",
    "ListEvaluationsResponse",
    "CancelEvaluationRequest",
    "CancelEvaluationResponse",
}


def test_every_message_has_a_plain_value_or_is_an_envelope() -> None:
    messages = set(evaluator_pb2.DESCRIPTOR.message_types_by_name)
    assert {message.DESCRIPTOR.name for message in wire.MESSAGE_OF.values()} == messages - ENVELOPES


@pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: kind.__name__)
def test_fields_are_one_to_one_and_in_order(kind: type[Any]) -> None:
    descriptor = wire.MESSAGE_OF[kind].DESCRIPTOR
    assert [field.name for field in dataclasses.fields(kind)] == [field.name for field in descriptor.fields]


@pytest.mark.parametrize("kind", ENUMS, ids=lambda kind: kind.__name__)
def test_enums_are_one_to_one(kind: type[enum.Enum]) -> None:
    descriptor = evaluator_pb2.DESCRIPTOR.enum_types_by_name[kind.__name__]
    prefix = descriptor.values_by_number[0].name.removesuffix("UNSPECIFIED")
    assert [value.name.removeprefix(prefix) for value in descriptor.values][1:] == [member.name for member in kind]


def _strategy(hint: Any, bits: int) -> st.SearchStrategy[Any]:
    if isinstance(hint, pytypes.UnionType):
        (inner,) = (one for one in hint.__args__ if one is not pytypes.NoneType)
        return st.none() | _strategy(inner, bits)
    if typing.get_origin(hint) is tuple:
        return st.lists(_strategy(typing.get_args(hint)[0], bits), max_size=2).map(tuple)
    if dataclasses.is_dataclass(hint):
        return _values(typing.cast("type[Any]", hint))
    if issubclass(hint, enum.Enum):
        return st.sampled_from(list(hint))
    simple: dict[type[Any], st.SearchStrategy[Any]] = {
        str: st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
        bool: st.booleans(),
        int: st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1),
        float: st.floats(allow_nan=False),
        timedelta: st.timedeltas(timedelta(0), timedelta(days=400)),
        datetime: st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)),
    }
    return simple[hint]


def _values(kind: type[Any]) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(kind)
    descriptor = wire.MESSAGE_OF[kind].DESCRIPTOR
    narrow = {field.name for field in descriptor.fields if field.cpp_type == field.CPPTYPE_INT32}
    return st.builds(kind, **{name: _strategy(hint, 32 if name in narrow else 64) for name, hint in hints.items()})


@pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: kind.__name__)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_round_trip(kind: type[Any], data: st.DataObject) -> None:
    value = data.draw(_values(kind))
    if kind is types.EvaluateRequest and value.problem_digest is not None:
        value = dataclasses.replace(value, problem=None)  # a oneof holds one
    message = wire.to_message(value)
    again = wire.MESSAGE_OF[kind].FromString(message.SerializeToString())
    assert wire.from_message(again, kind) == value
    assert from_json(json.loads(json.dumps(to_json(value), allow_nan=False)), kind) == value


def test_absent_stays_absent_and_zero_stays_zero() -> None:
    absent = wire.from_message(evaluator_pb2.Limits(), Limits)
    assert absent == Limits()
    zero = Limits(memory_bytes=0, build_time=timedelta(0))
    assert wire.from_message(wire.to_message(zero), Limits) == zero


def test_an_evaluation_without_a_verdict_is_an_error() -> None:
    with pytest.raises(wire.WireError, match="without a verdict"):
        wire.from_message(evaluator_pb2.Evaluation(), Evaluation)


def test_enum_numbers_of_a_newer_server_are_none() -> None:
    assert wire.enum_from_number(Stage, 999) is None
    message = evaluator_pb2.Evaluation(verdict=evaluator_pb2.VERDICT_PASSED, stage=999)  # type: ignore[arg-type]
    assert wire.from_message(message, Evaluation) == Evaluation(verdict=Verdict.PASSED)


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(TypeError, match="time zone"):
        wire.to_message(types.Progress(time=datetime(2026, 1, 1)))


def test_json_writes_numbers_that_json_lacks_as_text() -> None:
    written = to_json(types.Mismatch(got=math.inf, expected=-math.inf))
    assert written["got"] == "Infinity"
    assert written["expected"] == "-Infinity"
    assert math.isnan(from_json({"got": "NaN"}, types.Mismatch).got)


@pytest.mark.parametrize("data", [[], {"trials": "many"}, {"mismatch": 3}, {"input_classes": "a"}])
def test_json_that_is_not_ours_is_a_value_error(data: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_json(data, types.Correctness)
