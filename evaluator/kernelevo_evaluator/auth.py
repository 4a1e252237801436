"""Who calls: proved by a bearer token or a client certificate, or by nothing where the address itself is private."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from kernelevo_api.errors import Unauthenticated
from kernelevo_evaluator.admission import MAXIMUM_CLIENT_ID
from kernelevo_evaluator.service import refuse
from kernelevo_evaluator.tokens import digest_of_token

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from kernelevo_evaluator.queue import Quota
    from kernelevo_evaluator.tokens import TokenEntry

_OPEN_TO_ALL = "/grpc.health.v1.Health/"
"""Probes of load balancers carry no token, and learn nothing but whether work is taken."""
_CERTIFICATE_NAMES = ("x509_subject_alternative_name", "x509_common_name")


class Gate:
    """Tells callers apart. `entries` may be exchanged while calls are answered."""

    def __init__(self, entries: Iterable[TokenEntry] | None, *, certificates: bool = True) -> None:
        """`entries`: `None` where no token is asked for. `certificates`: whether clients are asked for any."""
        self._certificates = certificates
        self.entries = tuple(entries) if entries is not None else None

    @property
    def quotas(self) -> Mapping[str, Quota]:
        """Quota of each name."""
        return {entry.name: entry.quota for entry in self.entries or ()}

    def named(self, metadata: Any) -> str | None:
        """The name whose token a call carries."""
        found: str | None = None
        for key, value in metadata or ():
            if key != "authorization" or not isinstance(value, str):
                continue
            scheme, _, token = value.partition(" ")
            digest = digest_of_token(token)
            for entry in self.entries or ():
                # No early end: the time says nothing about which token, or how much of it, was right.
                same = hmac.compare_digest(digest, entry.digest)
                found = entry.name if same and scheme.lower() == "bearer" else found
        return found

    def caller(self, context: Any) -> str | None:
        """The proved name of who makes a call; `None` where nothing was asked to be proved."""
        if self.entries is not None:
            return self.named(context.invocation_metadata())
        if not self._certificates:
            return None
        proved = context.auth_context()
        for kind in _CERTIFICATE_NAMES:
            for value in proved.get(kind, ()):
                return f"cert:{value.decode('utf-8', 'replace')}"[:MAXIMUM_CLIENT_ID]
        return None


class TokenInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls without a token that the gate knows."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        details: Any = handler_call_details
        if handler is None or details.method.startswith(_OPEN_TO_ALL):
            return handler
        if self._gate.named(details.invocation_metadata) is not None:
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
