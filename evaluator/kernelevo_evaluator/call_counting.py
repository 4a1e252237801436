"""How calls end and how long they take, whoever ended them: answered, refused at the door, given up by the client."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from kernelevo_api.evaluator.v1 import evaluator_pb2
from kernelevo_evaluator.service import status_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kernelevo_evaluator.metrics import Metrics

_SERVICE = evaluator_pb2.DESCRIPTOR.services_by_name["EvaluatorService"].full_name


class CountingInterceptor(grpc.aio.ServerInterceptor):
    """Counts the calls of the evaluator's service. Goes before all others, so that it sees what they refuse."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        details: Any = handler_call_details
        service, _, method = details.method.removeprefix("/").partition("/")
        if handler is None or service != _SERVICE or handler.request_streaming:
            return handler
        read, write = handler.request_deserializer, handler.response_serializer
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(self._counted(method, handler.unary_stream), read, write)
        return grpc.unary_unary_rpc_method_handler(self._counted(method, handler.unary_unary), read, write)

    def _counted(self, method: str, answer: Callable[[Any, Any], Awaitable[Any]]) -> Callable[..., Any]:
        async def behave(request: Any, context: Any) -> Any:
            began = time.perf_counter()
            status = grpc.StatusCode.CANCELLED.name
            try:
                result = await answer(request, context)
                status = grpc.StatusCode.OK.name
            except Exception:
                status = status_name(context.code())
                raise
            finally:
                self._metrics.called(method, status, time.perf_counter() - began)
            return result

        return behave
