"""Bearer tokens: who may call. Tokens are read once from a file, and compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from kernelevo_api.errors import Unauthenticated
from kernelevo_evaluator.service import refuse

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

SHORTEST_TOKEN = 16
_OPEN_TO_ALL = "/grpc.health.v1.Health/"
"""Probes of load balancers carry no token, and learn nothing but whether work is taken."""


class TokensInvalid(Exception):
    """The token file cannot be used."""


def read_tokens(path: Path) -> tuple[bytes, ...]:
    """SHA-256 of each token in the file: one a line, empty lines and lines that begin with # aside.

    Raises:
        TokensInvalid: unreadable, open to other users, without a token, or with one that can be guessed.
    """
    try:
        if path.stat().st_mode & 0o077:
            raise TokensInvalid(f"{path} can be read by other users; chmod 600 it")
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise TokensInvalid(f"{path} cannot be read: {error}") from error
    tokens = [line for line in lines if line and not line.startswith("#")]
    if not tokens:
        raise TokensInvalid(f"{path} holds no token")
    if any(len(token) < SHORTEST_TOKEN for token in tokens):
        raise TokensInvalid(f"a token in {path} is shorter than {SHORTEST_TOKEN} characters")
    return tuple(hashlib.sha256(token.encode()).digest() for token in tokens)


class TokenInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls without one of the tokens."""

    def __init__(self, tokens: tuple[bytes, ...]) -> None:
        self._tokens = tokens

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        details: Any = handler_call_details
        if handler is None or details.method.startswith(_OPEN_TO_ALL) or self._known(details.invocation_metadata):
            return handler

        async def deny(_request: Any, context: Any) -> None:
            await refuse(context, Unauthenticated("this evaluator asks for a token: authorization: Bearer …"))

        if handler.request_streaming and handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(deny)
        if handler.request_streaming:
            return grpc.stream_unary_rpc_method_handler(deny)
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(deny)
        return grpc.unary_unary_rpc_method_handler(deny)

    def _known(self, metadata: Any) -> bool:
        given = [value for key, value in metadata or () if key == "authorization" and isinstance(value, str)]
        known = False
        for value in given:
            scheme, _, token = value.partition(" ")
            digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
            for one in self._tokens:
                # No early end: the time says nothing about which token, or how much of it, was right.
                known |= hmac.compare_digest(digest, one) and scheme.lower() == "bearer"
        return known
