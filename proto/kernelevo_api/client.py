# ruff: noqa: ASYNC109 - a timeout here is the gRPC deadline, which the server sees
"""The typed client of an evaluator, for asyncio and for threads.

Both clients speak in the values of `types.py` and raise the errors of `errors.py`. They own the contract's retries and nothing
else: `UNAVAILABLE`, and `RESOURCE_EXHAUSTED` after its delay, under the same `request_id`; an unknown digest is registered and
the request sent again where the problem is known here.

    async with AsyncEvaluatorClient("unix:/run/user/1000/kernelevo/evaluator.sock") as client:
        report = await client.register_problem(Problem(source=text))
        evaluation = await client.evaluate(
            EvaluateRequest(problem_digest=report.problem_digest, candidate=Candidate(source=kernel))
        )
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import time
import uuid
from typing import TYPE_CHECKING, Any, TypeVar, cast

import grpc
import grpc.aio

from kernelevo_api import channel as channels
from kernelevo_api.channel import Patience, RetryPolicy, Tls
from kernelevo_api.errors import (
    ContractViolation,
    DeadlineExceeded,
    EvaluatorError,
    InvalidRequest,
    UnknownProblem,
    Unreachable,
    from_rpc_error,
)
from kernelevo_api.evaluator.v1 import evaluator_pb2 as pb
from kernelevo_api.evaluator.v1 import evaluator_pb2_grpc
from kernelevo_api.health import watch_health
from kernelevo_api.trace_context import trace_metadata
from kernelevo_api.types import (
    Capabilities,
    EvaluateRequest,
    Evaluation,
    Problem,
    ProblemReport,
    Progress,
    RegisterProblemRequest,
)
from kernelevo_api.wire import WireError, from_message, to_message

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
    from types import TracebackType

    from google.protobuf.message import Message

T = TypeVar("T")

UNARY_TIMEOUT_S = 30.0
"""Deadline of calls that only look something up."""
READY_POLL_S = 0.05


def problem_digest(source: str) -> str:
    """The digest that names a problem."""
    return hashlib.sha256(source.encode()).hexdigest()


class _Shared:
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


class AsyncEvaluatorClient(_Shared):
    """Talks to one evaluator from asyncio. Belongs to the event loop it is used in first; close it there."""

    _channel: grpc.aio.Channel | None = None

    async def __aenter__(self) -> AsyncEvaluatorClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection. Calls under way are cancelled; their work stays for the server's grace period."""
        if self._channel is not None:
            await self._channel.close()
            self._channel = None

    async def wait_ready(self, timeout: float = 10.0) -> Capabilities:
        """Wait until the evaluator answers, and return what it can do.

        Raises:
            Unreachable: nothing answered within `timeout` seconds.
        """
        end = time.monotonic() + timeout
        while True:
            try:
                return await self.get_capabilities(timeout=max(0.1, end - time.monotonic()), retry=False)
            except (Unreachable, DeadlineExceeded) as error:
                if time.monotonic() >= end:
                    raise Unreachable(f"nothing answered at {self.address} within {timeout:g} s") from error
                await asyncio.sleep(READY_POLL_S)

    async def get_capabilities(self, *, timeout: float = UNARY_TIMEOUT_S, retry: bool = True) -> Capabilities:
        """What the evaluator can do, and on what."""
        message = await self._unary("GetCapabilities", pb.GetCapabilitiesRequest(), timeout, retry=retry)
        return _read(message, Capabilities)

    async def register_problem(
        self,
        problem: Problem,
        *,
        accept_refused: bool = False,
        with_seeds: bool = False,
        on_progress: Callable[[Progress], None] | None = None,
        timeout: float | None = None,
    ) -> ProblemReport:
        """Store and audit a problem. May take minutes the first time; the same problem again returns at once.

        `with_seeds`: have the report hold candidates that need no model too, which takes some seconds more.

        Raises:
            ProblemRefused: it cannot be used, or only with `accept_refused`.
        """
        message = _write(self._registration(problem, accept_refused, with_seeds))
        return await self._stream("RegisterProblem", message, ("report", ProblemReport), on_progress, timeout)

    async def evaluate(
        self,
        request: EvaluateRequest,
        *,
        on_progress: Callable[[Progress], None] | None = None,
        timeout: float | None = None,
    ) -> Evaluation:
        """Have one candidate judged. A request without a `request_id` gets one; `timeout` covers queue and retries too.

        Cancelling this call leaves the work running for the server's grace period; `cancel_evaluation` stops it at once.

        Raises:
            CallRefused: it was not evaluated; the subclass says why.
            Unreachable: the evaluator is gone and did not come back.
            DeadlineExceeded: `timeout` passed.
        """
        request = self._prepare(request)
        message = _write(request)
        end = None if timeout is None else time.monotonic() + timeout

        def left() -> float | None:
            return None if end is None else end - time.monotonic()

        try:
            return await self._stream("Evaluate", message, ("evaluation", Evaluation), on_progress, left())
        except UnknownProblem:
            problem = self._known_problem(request)
            if problem is None:
                raise
        await self.register_problem(
            problem, accept_refused=request.accept_refused_problem, on_progress=on_progress, timeout=left()
        )
        return await self._stream("Evaluate", message, ("evaluation", Evaluation), on_progress, left())

    async def get_evaluation(
        self, *, evaluation_id: str | None = None, request_id: str | None = None, timeout: float = UNARY_TIMEOUT_S
    ) -> Evaluation | Progress:
        """What was recorded, by one of the two ids; `Progress` while it is queued or running.

        Raises:
            UnknownEvaluation: nothing is stored under this id.
        """
        request = pb.GetEvaluationRequest(**_one_key(evaluation_id, request_id))
        return _state(await self._unary("GetEvaluation", request, timeout))

    async def list_evaluations(
        self, problem_digest: str = "", *, page_size: int = 100, timeout: float = UNARY_TIMEOUT_S
    ) -> AsyncGenerator[Evaluation, None]:
        """Recorded evaluations, newest first, page after page."""
        token = ""
        while True:
            request = pb.ListEvaluationsRequest(problem_digest=problem_digest, page_size=page_size, page_token=token)
            message = await self._unary("ListEvaluations", request, timeout)
            for one in message.evaluations:
                yield _read(one, Evaluation)
            token = message.next_page_token
            if not token:
                return

    async def cancel_evaluation(
        self, *, evaluation_id: str | None = None, request_id: str | None = None, timeout: float = UNARY_TIMEOUT_S
    ) -> tuple[bool, Evaluation | None]:
        """Detach this client's request; returns when the processes are gone.

        Returns:
            Whether the work itself was stopped (another request may still wait for it), and what is recorded.
        """
        request = pb.CancelEvaluationRequest(client_id=self.client_id, **_one_key(evaluation_id, request_id))
        message = await self._unary("CancelEvaluation", request, timeout)
        return message.stopped, _read(message.evaluation, Evaluation) if message.HasField("evaluation") else None

    def watch_health(self) -> AsyncIterator[bool]:
        """Whether the evaluator takes work, now and whenever that changes, until the connection ends.

        Raises:
            Unreachable: it did.
            ContractViolation: the server has no health service.
        """
        return watch_health(self._open(), self._metadata, self.address)

    @property
    def _stub(self) -> Any:
        return evaluator_pb2_grpc.EvaluatorServiceStub(self._open())

    def _open(self) -> grpc.aio.Channel:
        if self._channel is None:
            secret = channels.credentials(self._tls)
            options = channels.channel_options(self._server_name)
            if secret is None:
                self._channel = grpc.aio.insecure_channel(self._target, options)
            else:
                self._channel = grpc.aio.secure_channel(self._target, secret, options)
        return self._channel

    async def _unary(self, method: str, request: Message, timeout: float, *, retry: bool = True) -> Any:
        async def once(left: float | None, patience: Patience) -> Any:
            return await getattr(self._stub, method)(request, timeout=left, metadata=self._carried())

        return await self._with_retries(once, timeout, retry=retry)

    async def _stream(
        self,
        method: str,
        request: Message,
        last: tuple[str, type[T]],
        on_progress: Callable[[Progress], None] | None,
        timeout: float | None,
    ) -> T:
        async def once(left: float | None, patience: Patience) -> T:
            field, kind = last
            stream = getattr(self._stub, method)(request, timeout=left, metadata=self._carried())
            try:
                async for event in stream:
                    self._answered(patience)
                    if event.WhichOneof("event") == field:
                        return _read(getattr(event, field), kind)
                    if on_progress is not None and event.HasField("progress"):
                        on_progress(_read(event.progress, Progress))
            finally:
                stream.cancel()
            raise ContractViolation(f"{self.address} ended the stream without its last event")

        return await self._with_retries(once, timeout)

    async def _with_retries(
        self, once: Callable[[float | None, Patience], Awaitable[T]], timeout: float | None, *, retry: bool = True
    ) -> T:
        patience = self._patience()
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if end is None else max(0.001, end - time.monotonic())
            try:
                result = await once(left, patience)
            except grpc.aio.AioRpcError as raised:
                error = from_rpc_error(raised, self.address)
                if not isinstance(error, Unreachable):
                    self._answered(patience)
                delay = patience.delay(error) if retry else None
                if delay is None or (end is not None and time.monotonic() + delay >= end):
                    raise error from raised
                await asyncio.sleep(delay)
            else:
                self._answered(patience)
                return result


class EvaluatorClient(_Shared):
    """Talks to one evaluator from ordinary threads. Safe to share between them."""

    _channel: grpc.Channel | None = None

    def __enter__(self) -> EvaluatorClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. Calls under way are cancelled; their work stays for the server's grace period."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def wait_ready(self, timeout: float = 10.0) -> Capabilities:
        """As `AsyncEvaluatorClient.wait_ready`."""
        end = time.monotonic() + timeout
        while True:
            try:
                return self.get_capabilities(timeout=max(0.1, end - time.monotonic()), retry=False)
            except (Unreachable, DeadlineExceeded) as error:
                if time.monotonic() >= end:
                    raise Unreachable(f"nothing answered at {self.address} within {timeout:g} s") from error
                time.sleep(READY_POLL_S)

    def get_capabilities(self, *, timeout: float = UNARY_TIMEOUT_S, retry: bool = True) -> Capabilities:
        """As `AsyncEvaluatorClient.get_capabilities`."""
        message = self._unary("GetCapabilities", pb.GetCapabilitiesRequest(), timeout, retry=retry)
        return _read(message, Capabilities)

    def register_problem(
        self,
        problem: Problem,
        *,
        accept_refused: bool = False,
        with_seeds: bool = False,
        on_progress: Callable[[Progress], None] | None = None,
        timeout: float | None = None,
    ) -> ProblemReport:
        """As `AsyncEvaluatorClient.register_problem`."""
        message = _write(self._registration(problem, accept_refused, with_seeds))
        return self._stream("RegisterProblem", message, ("report", ProblemReport), on_progress, timeout)

    def evaluate(
        self,
        request: EvaluateRequest,
        *,
        on_progress: Callable[[Progress], None] | None = None,
        timeout: float | None = None,
    ) -> Evaluation:
        """As `AsyncEvaluatorClient.evaluate`."""
        request = self._prepare(request)
        message = _write(request)
        end = None if timeout is None else time.monotonic() + timeout

        def left() -> float | None:
            return None if end is None else end - time.monotonic()

        try:
            return self._stream("Evaluate", message, ("evaluation", Evaluation), on_progress, left())
        except UnknownProblem:
            problem = self._known_problem(request)
            if problem is None:
                raise
        self.register_problem(
            problem, accept_refused=request.accept_refused_problem, on_progress=on_progress, timeout=left()
        )
        return self._stream("Evaluate", message, ("evaluation", Evaluation), on_progress, left())

    def get_evaluation(
        self, *, evaluation_id: str | None = None, request_id: str | None = None, timeout: float = UNARY_TIMEOUT_S
    ) -> Evaluation | Progress:
        """As `AsyncEvaluatorClient.get_evaluation`."""
        request = pb.GetEvaluationRequest(**_one_key(evaluation_id, request_id))
        return _state(self._unary("GetEvaluation", request, timeout))

    def list_evaluations(
        self, problem_digest: str = "", *, page_size: int = 100, timeout: float = UNARY_TIMEOUT_S
    ) -> Iterator[Evaluation]:
        """As `AsyncEvaluatorClient.list_evaluations`."""
        token = ""
        while True:
            request = pb.ListEvaluationsRequest(problem_digest=problem_digest, page_size=page_size, page_token=token)
            message = self._unary("ListEvaluations", request, timeout)
            for one in message.evaluations:
                yield _read(one, Evaluation)
            token = message.next_page_token
            if not token:
                return

    def cancel_evaluation(
        self, *, evaluation_id: str | None = None, request_id: str | None = None, timeout: float = UNARY_TIMEOUT_S
    ) -> tuple[bool, Evaluation | None]:
        """As `AsyncEvaluatorClient.cancel_evaluation`."""
        request = pb.CancelEvaluationRequest(client_id=self.client_id, **_one_key(evaluation_id, request_id))
        message = self._unary("CancelEvaluation", request, timeout)
        return message.stopped, _read(message.evaluation, Evaluation) if message.HasField("evaluation") else None

    @property
    def _stub(self) -> Any:
        if self._channel is None:
            secret = channels.credentials(self._tls)
            options = channels.channel_options(self._server_name)
            if secret is None:
                self._channel = grpc.insecure_channel(self._target, options)
            else:
                self._channel = grpc.secure_channel(self._target, secret, options)
        return evaluator_pb2_grpc.EvaluatorServiceStub(self._channel)

    def _unary(self, method: str, request: Message, timeout: float, *, retry: bool = True) -> Any:
        def once(left: float | None, patience: Patience) -> Any:
            return getattr(self._stub, method)(request, timeout=left, metadata=self._carried())

        return self._with_retries(once, timeout, retry=retry)

    def _stream(
        self,
        method: str,
        request: Message,
        last: tuple[str, type[T]],
        on_progress: Callable[[Progress], None] | None,
        timeout: float | None,
    ) -> T:
        def once(left: float | None, patience: Patience) -> T:
            field, kind = last
            stream = getattr(self._stub, method)(request, timeout=left, metadata=self._carried())
            try:
                for event in stream:
                    self._answered(patience)
                    if event.WhichOneof("event") == field:
                        return _read(getattr(event, field), kind)
                    if on_progress is not None and event.HasField("progress"):
                        on_progress(_read(event.progress, Progress))
            finally:
                stream.cancel()
            raise ContractViolation(f"{self.address} ended the stream without its last event")

        return self._with_retries(once, timeout)

    def _with_retries(
        self, once: Callable[[float | None, Patience], T], timeout: float | None, *, retry: bool = True
    ) -> T:
        patience = self._patience()
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if end is None else max(0.001, end - time.monotonic())
            try:
                result = once(left, patience)
            except grpc.RpcError as raised:
                error = from_rpc_error(raised, self.address)
                if not isinstance(error, Unreachable):
                    self._answered(patience)
                delay = patience.delay(error) if retry else None
                if delay is None or (end is not None and time.monotonic() + delay >= end):
                    raise error from raised
                time.sleep(delay)
            else:
                self._answered(patience)
                return result


def _write(value: Any) -> Message:
    try:
        return to_message(value)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"the request cannot be written as a message: {error}") from error


def _read(message: Any, kind: type[T]) -> T:
    try:
        return from_message(cast("Message", message), kind)
    except WireError as error:
        raise ContractViolation(str(error)) from error


def _one_key(evaluation_id: str | None, request_id: str | None) -> dict[str, str]:
    if evaluation_id is not None and request_id is None:
        return {"evaluation_id": evaluation_id}
    if request_id is not None and evaluation_id is None:
        return {"request_id": request_id}
    raise TypeError("give one of evaluation_id and request_id")


def _state(message: Any) -> Evaluation | Progress:
    match message.WhichOneof("state"):
        case "evaluation":
            return _read(message.evaluation, Evaluation)
        case "progress":
            return _read(message.progress, Progress)
        case _:
            raise ContractViolation("an answer to GetEvaluation that holds nothing")


__all__ = ["AsyncEvaluatorClient", "EvaluatorClient", "EvaluatorError", "RetryPolicy", "Tls", "problem_digest"]
