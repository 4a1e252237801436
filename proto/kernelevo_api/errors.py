"""Why a call to an evaluator brought nothing. A kernel that fails is not among these: that is a verdict.

    EvaluatorError
    ├── CallRefused                 the evaluator answered with a reason from the contract's table
    │   ├── InvalidRequest          a field is missing or malformed; `violations` names it
    │   ├── LimitTooHigh            a limit above the server's maximum
    │   ├── TooLarge                a source or message larger than the server takes
    │   ├── UnknownProblem          the digest is not stored there: register it and resend
    │   ├── UnknownEvaluation       no evaluation of this id is stored there
    │   ├── ProblemRefused          the problem failed its audit or cannot be read
    │   ├── RequestIdReused         the request_id was used before with other content
    │   ├── Unsupported             this language, device or effort is not offered
    │   ├── Unauthenticated         no token, or one that is not known
    │   ├── QueueFull               retry after `retry_delay`
    │   ├── Draining                the server is shutting down: retry elsewhere, or later
    │   ├── EvaluatorFault          a fault of the evaluator's own: retry
    │   └── StoreUnavailable        its store is full or cannot be written: retry
    ├── Unreachable                 nothing answers at the address, or the connection broke
    ├── DeadlineExceeded            the call's deadline passed
    ├── CallCancelled               the call was cancelled on this side
    └── ContractViolation           an answer that is not what the contract says

Each reason of the table has one class and one gRPC status (`STATUS_OF`); a test holds the three together. The server raises the
same classes, so that both sides read one table. Words of google.rpc: `ErrorInfo`, `BadRequest` and `RetryInfo`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import grpc
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2  # type: ignore[import-untyped]

from kernelevo_api.types import ErrorReason

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta

DOMAIN = "kernelevo.evaluator.v1"
"""`ErrorInfo.domain` of every reason."""
DETAILS_KEY = "grpc-status-details-bin"
"""Trailing metadata under which gRPC carries a google.rpc.Status."""


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """What is wrong with one field of a request."""

    field: str
    """Path from the request, e.g. `limits.build_time`."""
    description: str


class EvaluatorError(Exception):
    """Root of what a client raises. `retryable`: the same call may succeed later, or elsewhere."""

    retryable: bool = False

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class CallRefused(EvaluatorError):
    """The evaluator answered with a reason. Subclasses stand for one reason each."""

    reason: ClassVar[ErrorReason]

    def __init__(
        self, message: str, *, violations: Iterable[FieldViolation] = (), retry_delay: timedelta | None = None
    ) -> None:
        super().__init__(message)
        self.violations = tuple(violations)
        self.retry_delay = retry_delay
        """How long the server asks to wait before a retry."""


class InvalidRequest(CallRefused):
    """A field is missing or malformed."""

    reason = ErrorReason.INVALID_REQUEST


class LimitTooHigh(CallRefused):
    """A limit above the server's maximum was asked for; nothing is clamped."""

    reason = ErrorReason.LIMIT_TOO_HIGH


class TooLarge(CallRefused):
    """A source or message is larger than the server takes."""

    reason = ErrorReason.TOO_LARGE


class UnknownProblem(CallRefused):
    """The problem's digest is not stored on the server."""

    reason = ErrorReason.UNKNOWN_PROBLEM


class UnknownEvaluation(CallRefused):
    """No evaluation of this id is stored on the server."""

    reason = ErrorReason.UNKNOWN_EVALUATION


class ProblemRefused(CallRefused):
    """The problem failed its audit or cannot be read. Each violation is a finding."""

    reason = ErrorReason.PROBLEM_REFUSED


class RequestIdReused(CallRefused):
    """The request_id was used before with other content."""

    reason = ErrorReason.REQUEST_ID_REUSED


class Unsupported(CallRefused):
    """The server does not offer this language, device or effort."""

    reason = ErrorReason.UNSUPPORTED


PROBLEM_NOT_TAKEN = (ProblemRefused, InvalidRequest, TooLarge, Unsupported)
"""What an evaluator answers that is well and does not take a problem."""


class Unauthenticated(CallRefused):
    """No token, or one that is not known."""

    reason = ErrorReason.UNAUTHENTICATED


class QueueFull(CallRefused):
    """The queue, or this client's share of it, is full."""

    reason = ErrorReason.QUEUE_FULL
    retryable = True


class Draining(CallRefused):
    """The server is shutting down."""

    reason = ErrorReason.DRAINING
    retryable = True


class EvaluatorFault(CallRefused):
    """A fault of the evaluator's own; nothing is known about the candidate."""

    reason = ErrorReason.EVALUATOR_FAULT
    retryable = True


class StoreUnavailable(CallRefused):
    """The server's store is full or cannot be written; nothing was lost."""

    reason = ErrorReason.STORE_UNAVAILABLE
    retryable = True


class Unreachable(EvaluatorError):
    """Nothing answers at the address, or the connection broke."""

    retryable = True


class DeadlineExceeded(EvaluatorError):
    """The call's deadline passed. The work goes on for the server's grace period: resend under the same request_id."""


class CallCancelled(EvaluatorError):
    """The call was cancelled on this side."""


class ContractViolation(EvaluatorError):
    """An answer that is not what the contract says; the server is not of this version, or not an evaluator."""


ERROR_OF: dict[ErrorReason, type[CallRefused]] = {kind.reason: kind for kind in CallRefused.__subclasses__()}
"""The class of each reason."""

STATUS_OF: dict[ErrorReason, grpc.StatusCode] = {
    ErrorReason.INVALID_REQUEST: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorReason.UNKNOWN_PROBLEM: grpc.StatusCode.NOT_FOUND,
    ErrorReason.PROBLEM_REFUSED: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorReason.UNKNOWN_EVALUATION: grpc.StatusCode.NOT_FOUND,
    ErrorReason.REQUEST_ID_REUSED: grpc.StatusCode.ALREADY_EXISTS,
    ErrorReason.QUEUE_FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorReason.LIMIT_TOO_HIGH: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorReason.TOO_LARGE: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorReason.UNSUPPORTED: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorReason.DRAINING: grpc.StatusCode.UNAVAILABLE,
    ErrorReason.EVALUATOR_FAULT: grpc.StatusCode.UNAVAILABLE,
    ErrorReason.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    ErrorReason.STORE_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
}
"""The gRPC status of each reason."""

_MESSAGE_LIMIT = 1024
"""Longest message put into a status, in bytes: it travels in a header, and gRPC bounds those to 8 KiB by default."""
_VIOLATION_LIMIT = 8
"""Most field violations put into a status."""
_DESCRIPTION_LIMIT = 200
"""Longest description of one violation, in bytes."""


def to_status(error: CallRefused) -> status_pb2.Status:
    """The google.rpc.Status that carries `error` across the wire."""
    details: list[any_pb2.Any] = [_pack(error_details_pb2.ErrorInfo(reason=error.reason.name, domain=DOMAIN))]
    if error.violations:
        violations = [
            error_details_pb2.BadRequest.FieldViolation(
                field=one.field, description=shorten(one.description, _DESCRIPTION_LIMIT)
            )
            for one in error.violations[:_VIOLATION_LIMIT]
        ]
        details.append(_pack(error_details_pb2.BadRequest(field_violations=violations)))
    if error.retry_delay is not None:
        info = error_details_pb2.RetryInfo()
        info.retry_delay.FromTimedelta(error.retry_delay)
        details.append(_pack(info))
    code = STATUS_OF[error.reason].name
    return status_pb2.Status(
        code=code_pb2.Code.Value(code), message=shorten(error.message, _MESSAGE_LIMIT), details=details
    )


def from_status(status: status_pb2.Status) -> CallRefused | None:
    """The error that `to_status` wrote; `None` where the status carries no reason that is known here."""
    kind: type[CallRefused] | None = None
    violations: list[FieldViolation] = []
    delay: timedelta | None = None
    for detail in status.details:
        info = error_details_pb2.ErrorInfo()
        bad = error_details_pb2.BadRequest()
        retry = error_details_pb2.RetryInfo()
        if detail.Unpack(info) and info.domain == DOMAIN and info.reason in ErrorReason.__members__:
            kind = ERROR_OF[ErrorReason[info.reason]]
        elif detail.Unpack(bad):
            violations += [FieldViolation(one.field, one.description) for one in bad.field_violations]
        elif detail.Unpack(retry):
            delay = retry.retry_delay.ToTimedelta()
    return kind(status.message, violations=violations, retry_delay=delay) if kind is not None else None


_OWN_CANCELS = ("Locally cancelled", "Channel closed")
"""How grpcio tells of calls that this side ended."""


def from_rpc_error(error: grpc.RpcError, address: str) -> EvaluatorError:
    """The typed error for what gRPC raised while talking to `address`."""
    code, text, trailing = _parts(error)
    for key, value in trailing:
        if key == DETAILS_KEY and isinstance(value, bytes):
            status = status_pb2.Status()
            try:
                status.ParseFromString(value)
            except ValueError:
                break
            found = from_status(status)
            if found is not None:
                return found
    match code:
        case grpc.StatusCode.UNAVAILABLE:
            return Unreachable(
                f"no evaluator answers at {address}: {text}. Start one with `kernelevo-evaluator serve`."
            )
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlineExceeded(f"the deadline passed while waiting for {address}")
        case grpc.StatusCode.CANCELLED if text.startswith(_OWN_CANCELS):
            return CallCancelled(f"the call to {address} was cancelled")
        case grpc.StatusCode.CANCELLED:
            # Not by this side: a server that has more calls than it can begin drops some.
            return Unreachable(f"{address} dropped the call before it was begun: {text}")
        case grpc.StatusCode.UNAUTHENTICATED:
            return Unauthenticated(text)
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            # Without a reason this is gRPC's own word for a message beyond its bound: a retry would not shrink it.
            return TooLarge(f"a message to or from {address} is larger than gRPC's limit here: {text}")
        case grpc.StatusCode.UNKNOWN | grpc.StatusCode.INTERNAL:
            return ContractViolation(f"{address} failed without a reason: {text}")
        case _:
            return ContractViolation(f"{address} answered {code.name if code else 'nothing'}: {text}")


def _parts(error: Any) -> tuple[grpc.StatusCode | None, str, tuple[tuple[str, str | bytes], ...]]:
    # `AioRpcError` and the synchronous `Call` that is raised have these methods; `RpcError` itself declares none.
    code = error.code() if hasattr(error, "code") else None
    text = str(error.details() or "") if hasattr(error, "details") else str(error)
    trailing = error.trailing_metadata() if hasattr(error, "trailing_metadata") else None
    return code, text, tuple(trailing or ())


def _pack(
    message: error_details_pb2.ErrorInfo | error_details_pb2.BadRequest | error_details_pb2.RetryInfo,
) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed


def shorten(text: str, limit: int) -> str:
    """`text` in at most `limit` bytes of UTF-8."""
    data = text.encode("utf-8", "replace")
    return data.decode() if len(data) <= limit else f"{data[: limit - 4].decode('utf-8', 'ignore')} …"
