"""One table: reason, gRPC status, Python class."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import grpc
import pytest

import kernelevo_api.errors as errors
from kernelevo_api.types import ErrorReason

PROTO = Path(__file__).parents[2] / "proto/kernelevo/evaluator/v1/evaluator.proto"


def test_the_table_is_one_to_one() -> None:
    assert set(errors.ERROR_OF) == set(errors.STATUS_OF) == set(ErrorReason)
    assert len({kind.__name__ for kind in errors.ERROR_OF.values()}) == len(ErrorReason)


@pytest.mark.parametrize("reason", ErrorReason)
def test_the_status_is_the_one_that_the_contract_names(reason: ErrorReason) -> None:
    lines = PROTO.read_text().splitlines()
    (at,) = (number for number, line in enumerate(lines) if line.startswith(f"  ERROR_REASON_{reason.name} ="))
    assert lines[at - 1].rstrip(".").split()[-1] == errors.STATUS_OF[reason].name


@pytest.mark.parametrize("reason", ErrorReason)
def test_every_error_crosses_the_wire_whole(reason: ErrorReason) -> None:
    kind = errors.ERROR_OF[reason]
    sent = kind("why", violations=[errors.FieldViolation("a.b", "is odd")], retry_delay=timedelta(seconds=1.5))
    got = errors.from_status(errors.to_status(sent))
    assert type(got) is kind
    assert (got.message, got.violations, got.retry_delay) == ("why", sent.violations, sent.retry_delay)


def test_what_a_client_may_retry_is_what_the_contract_says() -> None:
    temporary = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert {r for r in ErrorReason if errors.ERROR_OF[r].retryable} == {
        r for r in ErrorReason if errors.STATUS_OF[r] in temporary
    }


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    assert errors.__doc__ is not None
    for kind in [*errors.EvaluatorError.__subclasses__(), *errors.CallRefused.__subclasses__()]:
        assert f"── {kind.__name__} " in errors.__doc__


def test_a_status_fits_a_header() -> None:
    for letter in ("m", "é", "漢", "🙂", "\ud800"):
        many = [errors.FieldViolation("f" * 20, letter * 5000)] * 100
        assert errors.to_status(errors.InvalidRequest(letter * 100_000, violations=many)).ByteSize() < 4_000
