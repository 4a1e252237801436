# ruff: noqa: ASYNC109 - a timeout here is the gRPC deadline, which the server sees
"""The client for asyncio."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, TypeVar

import grpc.aio

from kernelevo_api import channel as channels
from kernelevo_api.client.shared import READY_POLL_S, UNARY_TIMEOUT_S, Shared, one_key, read, state, write
from kernelevo_api.errors import ContractViolation, DeadlineExceeded, UnknownProblem, Unreachable, from_rpc_error
from kernelevo_api.evaluator.v1 import evaluator_pb2 as pb
from kernelevo_api.evaluator.v1 import evaluator_pb2_grpc
from kernelevo_api.health import watch_health
from kernelevo_api.types import Capabilities, EvaluateRequest, Evaluation, Problem, ProblemReport, Progress

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
    from types import TracebackType

    from google.protobuf.message import Message

    from kernelevo_api.channel import Patience

T = TypeVar("T")


class AsyncEvaluatorClient(Shared):
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
        return read(message, Capabilities)

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
        message = write(self._registration(problem, accept_refused, with_seeds))
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
        message = write(request)
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
        request = pb.GetEvaluationRequest(**one_key(evaluation_id, request_id))
        return state(await self._unary("GetEvaluation", request, timeout))

    async def list_evaluations(
        self, problem_digest: str = "", *, page_size: int = 100, timeout: float = UNARY_TIMEOUT_S
    ) -> AsyncGenerator[Evaluation, None]:
        """Recorded evaluations, newest first, page after page."""
        token = ""
        while True:
            request = pb.ListEvaluationsRequest(problem_digest=problem_digest, page_size=page_size, page_token=token)
            message = await self._unary("ListEvaluations", request, timeout)
            for one in message.evaluations:
                yield read(one, Evaluation)
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
        request = pb.CancelEvaluationRequest(client_id=self.client_id, **one_key(evaluation_id, request_id))
        message = await self._unary("CancelEvaluation", request, timeout)
        return message.stopped, read(message.evaluation, Evaluation) if message.HasField("evaluation") else None

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
                        return read(getattr(event, field), kind)
                    if on_progress is not None and event.HasField("progress"):
                        on_progress(read(event.progress, Progress))
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
