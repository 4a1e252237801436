"""Bytes that are no message of the contract: the caller's mistake, and told as such.

gRPC's own answer to them is the status UNKNOWN with the name of an exception. Here the call is refused as any other malformed
one is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from kernelevo_api.errors import InvalidRequest
from kernelevo_evaluator.service import refuse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

_UNREADABLE = object()
"""What stands for a message that could not be read: an exception would end the call before anything here sees it."""


class DecodingInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls whose request cannot be read. Goes behind those that ask who calls; methods are coroutines, or generators
    of streams both ways."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_deserializer is None:
            return handler
        read, write = _lenient(handler.request_deserializer), handler.response_serializer
        if handler.request_streaming and handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(_checked_stream(handler.stream_stream), read, write)
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(_checked(handler.unary_stream), read, write)
        if not handler.request_streaming:
            return grpc.unary_unary_rpc_method_handler(_checked(handler.unary_unary), read, write)
        return handler  # Many requests, one answer: no service here has such a method.


def _lenient(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError:
            return _UNREADABLE

    return read


def _checked(answer: Callable[[Any, Any], Awaitable[Any]]) -> Callable[..., Any]:
    async def behave(request: Any, context: Any) -> Any:
        if request is _UNREADABLE:
            await _refuse(context)
        return await answer(request, context)

    return behave


def _checked_stream(answer: Callable[[Any, Any], AsyncIterator[Any]]) -> Callable[..., Any]:
    async def behave(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async def readable() -> AsyncIterator[Any]:
            async for request in requests:
                if request is _UNREADABLE:
                    await _refuse(context)
                yield request

        async for response in answer(readable(), context):
            yield response

    return behave


async def _refuse(context: Any) -> None:
    await refuse(context, InvalidRequest("the request is no message of the kind that this method takes"))
