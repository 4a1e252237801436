"""What both clients have in common: whom they call and as whom, what they send, and how they read what comes back."""

from __future__ import annotations

import dataclasses
import hashlib
import uuid
from typing import TYPE_CHECKING, Any, TypeVar, cast

from kernelevo_api import channel as channels
from kernelevo_api.channel import Patience, RetryPolicy, Tls
from kernelevo_api.errors import ContractViolation, InvalidRequest
from kernelevo_api.trace_context import trace_metadata
from kernelevo_api.types import EvaluateRequest, Evaluation, Problem, Progress, RegisterProblemRequest
from kernelevo_api.wire import WireError, from_message, to_message

if TYPE_CHECKING:
    from google.protobuf.message import Message

T = TypeVar("T")

UNARY_TIMEOUT_S = 30.0
"""Deadline of calls that only look something up."""
READY_POLL_S = 0.05


def problem_digest(source: str) -> str:
    """The digest that names a problem."""
    return hashlib.sha256(source.encode()).hexdigest()


class Shared:
    """What the two clients have in common: where to, as whom, and what they know."""

    def __init__(
        self,
        address: str,
        *,
        client_id: str = "",
        token: str | None = None,
        tls: Tls | None = None,
        retry: RetryPolicy | None = None,
        server_name: str = "",
    ) -> None:
        self.address = address
        self._server_name = server_name
        self.client_id = client_id
        self._retry = retry or RetryPolicy()
        self._target = channels.target_of(address)
        self._tls = tls
        self._metadata = channels.metadata(token, self._target, tls)
        self._connected = False
        self._problems: dict[str, Problem] = {}

    def _carried(self) -> tuple[tuple[str, str], ...]:
        return (*self._metadata, *trace_metadata())

    def _patience(self) -> Patience:
        return Patience(self._retry, connected=self._connected)

    def _answered(self, patience: Patience) -> None:
        self._connected = True
        patience.answered()

    def _prepare(self, request: EvaluateRequest) -> EvaluateRequest:
        return dataclasses.replace(
            request,
            request_id=request.request_id or str(uuid.uuid4()),
            client_id=request.client_id or self.client_id,
        )

    def _registration(self, problem: Problem, accept_refused: bool, with_seeds: bool) -> RegisterProblemRequest:
        self._problems[problem_digest(problem.source)] = problem
        return RegisterProblemRequest(
            problem=problem, accept_refused=accept_refused, client_id=self.client_id, with_seeds=with_seeds
        )

    def _known_problem(self, request: EvaluateRequest) -> Problem | None:
        return self._problems.get(request.problem_digest or "")


def write(value: Any) -> Message:
    try:
        return to_message(value)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"the request cannot be written as a message: {error}") from error


def read(message: Any, kind: type[T]) -> T:
    try:
        return from_message(cast("Message", message), kind)
    except WireError as error:
        raise ContractViolation(str(error)) from error


def one_key(evaluation_id: str | None, request_id: str | None) -> dict[str, str]:
    if evaluation_id is not None and request_id is None:
        return {"evaluation_id": evaluation_id}
    if request_id is not None and evaluation_id is None:
        return {"request_id": request_id}
    raise TypeError("give one of evaluation_id and request_id")


def state(message: Any) -> Evaluation | Progress:
    match message.WhichOneof("state"):
        case "evaluation":
            return read(message.evaluation, Evaluation)
        case "progress":
            return read(message.progress, Progress)
        case _:
            raise ContractViolation("an answer to GetEvaluation that holds nothing")
