"""The client for ordinary threads."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from kernelevo_api import channel as channels
from kernelevo_api.client.shared import READY_POLL_S, UNARY_TIMEOUT_S, Shared, one_key, read, state, write
from kernelevo_api.errors import ContractViolation, DeadlineExceeded, UnknownProblem, Unreachable, from_rpc_error
from kernelevo_api.evaluator.v1 import evaluator_pb2 as pb
from kernelevo_api.evaluator.v1 import evaluator_pb2_grpc
from kernelevo_api.types import Capabilities, EvaluateRequest, Evaluation, Problem, ProblemReport, Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from google.protobuf.message import Message

    from kernelevo_api.channel import Patience

T = TypeVar("T")


class EvaluatorClient(Shared):
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
        return read(message, Capabilities)

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
        message = write(self._registration(problem, accept_refused, with_seeds))
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
        message = write(request)
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
        request = pb.GetEvaluationRequest(**one_key(evaluation_id, request_id))
        return state(self._unary("GetEvaluation", request, timeout))

    def list_evaluations(
        self, problem_digest: str = "", *, page_size: int = 100, timeout: float = UNARY_TIMEOUT_S
    ) -> Iterator[Evaluation]:
        """As `AsyncEvaluatorClient.list_evaluations`."""
        token = ""
        while True:
            request = pb.ListEvaluationsRequest(problem_digest=problem_digest, page_size=page_size, page_token=token)
            message = self._unary("ListEvaluations", request, timeout)
            for one in message.evaluations:
                yield read(one, Evaluation)
            token = message.next_page_token
            if not token:
                return

    def cancel_evaluation(
        self, *, evaluation_id: str | None = None, request_id: str | None = None, timeout: float = UNARY_TIMEOUT_S
    ) -> tuple[bool, Evaluation | None]:
        """As `AsyncEvaluatorClient.cancel_evaluation`."""
        request = pb.CancelEvaluationRequest(client_id=self.client_id, **one_key(evaluation_id, request_id))
        message = self._unary("CancelEvaluation", request, timeout)
        return message.stopped, read(message.evaluation, Evaluation) if message.HasField("evaluation") else None

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
                        return read(getattr(event, field), kind)
                    if on_progress is not None and event.HasField("progress"):
                        on_progress(read(event.progress, Progress))
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
