"""The gRPC face of the evaluator: messages in, messages out, and nothing decided here."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import grpc
import structlog

from kernelevo_api.errors import (
    DETAILS_KEY,
    CallRefused,
    EvaluatorFault,
    FieldViolation,
    InvalidRequest,
    shorten,
    to_status,
)
from kernelevo_api.evaluator.v1 import evaluator_pb2 as pb
from kernelevo_api.evaluator.v1 import evaluator_pb2_grpc
from kernelevo_api.types import (
    Capabilities,
    EvaluateRequest,
    Evaluation,
    ProblemReport,
    Progress,
    RegisterProblemRequest,
)
from kernelevo_api.wire import from_message, to_message
from kernelevo_evaluator.written import Written

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from google.protobuf.message import Message

    from kernelevo_evaluator.auth import Gate
    from kernelevo_evaluator.evaluations import Evaluations

T = TypeVar("T")
Context = Any
"""grpc.aio.ServicerContext; the generated base class wants it to be a synchronous one too."""

_EVENTS_KEPT = 64
"""Most progress events that wait for a slow reader; older ones are dropped, as they are advisory."""
_REASON_IN_MESSAGE = 300
"""Longest text of the plain gRPC message, in bytes; more of it is in the details."""

_log = structlog.get_logger("kernelevo.evaluator")


class EvaluatorService(evaluator_pb2_grpc.EvaluatorServiceServicer):
    """Translates between the wire and `Evaluations`. A caller's proved name stands for the `client_id` that it gives."""

    def __init__(self, evaluations: Evaluations, gate: Gate) -> None:
        self._evaluations = evaluations
        self._gate = gate
        self._written = Written()

    async def GetCapabilities(self, request: pb.GetCapabilitiesRequest, context: Context) -> pb.GetCapabilitiesResponse:
        async with _answering(context):
            return _message(self._evaluations.capabilities(), pb.GetCapabilitiesResponse)

    # Written as coroutines that write, not as generators: a generator that the framework drops when a client goes away
    # is cleaned up some time later, a coroutine at once.

    async def RegisterProblem(  # type: ignore[override]
        self, request: pb.RegisterProblemRequest, context: Context
    ) -> None:
        async with _answering(context):
            events = _Events()
            plain = _read(request, RegisterProblemRequest)
            plain = replace(plain, client_id=self._client(context, plain.client_id))
            report = await self._stream(
                context, self._evaluations.register(plain, events.put), events, pb.RegisterProblemResponse
            )
            await context.write(pb.RegisterProblemResponse(report=_message(report, pb.ProblemReport)))

    async def Evaluate(self, request: pb.EvaluateRequest, context: Context) -> None:  # type: ignore[override]
        async with _answering(context):
            plain = _read(request, EvaluateRequest)
            plain = replace(plain, client_id=self._client(context, plain.client_id))
            evaluation = await self._evaluations.answer(plain)
            if evaluation is None:
                events = _Events()
                work = self._evaluations.evaluate(plain, events.put)
                evaluation = await self._stream(context, work, events, pb.EvaluateResponse)
            await context.write(pb.EvaluateResponse(evaluation=self._written.message(evaluation)))

    async def GetEvaluation(self, request: pb.GetEvaluationRequest, context: Context) -> pb.GetEvaluationResponse:
        async with _answering(context):
            found = await self._evaluations.get(**_key(request))
            if isinstance(found, Progress):
                return pb.GetEvaluationResponse(progress=_message(found, pb.Progress))
            return pb.GetEvaluationResponse(evaluation=_message(found, pb.Evaluation))

    async def ListEvaluations(self, request: pb.ListEvaluationsRequest, context: Context) -> pb.ListEvaluationsResponse:
        async with _answering(context):
            found, token = await self._evaluations.page(request.problem_digest, request.page_size, request.page_token)
            return pb.ListEvaluationsResponse(
                evaluations=[_message(one, pb.Evaluation) for one in found], next_page_token=token
            )

    async def CancelEvaluation(
        self, request: pb.CancelEvaluationRequest, context: Context
    ) -> pb.CancelEvaluationResponse:
        async with _answering(context):
            client = self._client(context, request.client_id)
            stopped, evaluation = await self._evaluations.cancel(**_key(request), client_id=client)
            return pb.CancelEvaluationResponse(stopped=stopped, evaluation=_message(evaluation, pb.Evaluation))

    def _client(self, context: Context, given: str) -> str:
        return self._gate.caller(context) or given

    async def _stream(self, context: Context, work: Coroutine[Any, Any, T], events: _Events, response: type[Any]) -> T:
        """Write progress until `work` ends. A client that goes away cancels this, and with it `work`."""
        task = asyncio.create_task(work)
        task.add_done_callback(events.close)
        try:
            async for event in events:
                await context.write(response(progress=_message(event, pb.Progress)))
            return await task
        finally:
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task
            elif not task.cancelled():
                task.exception()  # Seen, where the client went before it could be told.


class _Events:
    """Progress on its way to one stream; keeps the newest few."""

    def __init__(self) -> None:
        self._waiting: deque[Progress] = deque(maxlen=_EVENTS_KEPT)
        self._more = asyncio.Event()
        self._closed = False

    def put(self, event: Progress) -> None:
        self._waiting.append(event)
        self._more.set()

    def close(self, _task: object) -> None:
        self._closed = True
        self._more.set()

    async def __aiter__(self) -> AsyncIterator[Progress]:
        while True:
            while self._waiting:
                yield self._waiting.popleft()
            if self._closed:
                return
            self._more.clear()
            await self._more.wait()


@contextlib.asynccontextmanager
async def _answering(context: Context) -> AsyncIterator[None]:
    """Turns what is raised inside into a gRPC status with details."""
    try:
        yield
    except CallRefused as error:
        await refuse(context, error)
    except (asyncio.CancelledError, grpc.aio.AbortError):
        raise
    except grpc.aio.InternalError:
        # The client went away while it was being answered: there is nobody to tell, and nothing failed here.
        _log.debug("the client is gone")
        raise
    except Exception as error:
        _log.exception("call failed")
        await refuse(context, EvaluatorFault(f"the evaluator failed: {type(error).__name__}: {error}"))


async def refuse(context: Context, error: CallRefused) -> NoReturn:
    """End the call with the status that stands for `error`."""
    status = to_status(error)
    code = {one.value[0]: one for one in grpc.StatusCode}[status.code]
    await context.abort(
        code, shorten(error.message, _REASON_IN_MESSAGE), trailing_metadata=((DETAILS_KEY, status.SerializeToString()),)
    )
    raise AssertionError("abort returned")


def status_name(code: Any) -> str:
    """The name of the status that a call ended with by an exception; gRPC gives it as one or as its number."""
    number = code.value[0] if isinstance(code, grpc.StatusCode) else code
    # An exception without a status is told as UNKNOWN.
    return next((one.name for one in grpc.StatusCode if one.value[0] == number and number), "UNKNOWN")


def _read(message: Message, kind: type[T]) -> T:
    unknown = list(_unknown_numbers(message, ""))
    if unknown:
        raise InvalidRequest(
            f"a value that this evaluator does not know: {', '.join(one.field for one in unknown)}",
            violations=unknown,
        )
    try:
        return from_message(message, kind)
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(f"the request holds a value out of range: {error}") from error


def _unknown_numbers(message: Any, path: str) -> list[FieldViolation]:
    """Enum numbers that the contract does not have: to ignore one would be to do something else than was asked for."""
    found: list[FieldViolation] = []
    for field, value in message.ListFields():
        name = f"{path}{field.name}"
        for one in value if field.is_repeated else [value]:
            if field.type == field.TYPE_ENUM and one not in field.enum_type.values_by_number:
                found.append(FieldViolation(name, f"{one} is not in this version of the contract"))
            elif field.type == field.TYPE_MESSAGE:
                found += _unknown_numbers(one, f"{name}.")
    return found


def _key(request: pb.GetEvaluationRequest | pb.CancelEvaluationRequest) -> dict[str, str | None]:
    which = request.WhichOneof("key")
    if which is None or not getattr(request, which):
        violation = FieldViolation("key", "is missing: give evaluation_id or request_id")
        raise InvalidRequest(f"key {violation.description}", violations=[violation])
    if not getattr(request, which).isprintable():
        raise InvalidRequest(f"{which} is no id", violations=[FieldViolation(which, "is no id")])
    return {"evaluation_id": None, "request_id": None, which: getattr(request, which)}


def _message(value: Capabilities | Evaluation | ProblemReport | Progress, kind: type[T]) -> T:
    message = to_message(value)
    assert isinstance(message, kind)
    return message
