"""The health service alone, in plain text on an address of its own: for probes that speak no TLS, as Kubernetes' own.

It takes one bit of information from the server and no work, so that it asks for neither a token nor a certificate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc.aio
from grpc_health.v1 import health_pb2_grpc  # type: ignore[import-untyped]

from kernelevo_api.channel import target_of
from kernelevo_evaluator.decoding import DecodingInterceptor
from kernelevo_evaluator.sockets import ListenError

if TYPE_CHECKING:
    from kernelevo_evaluator.health import HealthService

LIVENESS = "liveness"
"""Healthy for as long as this process answers, draining or without a healthy device: for probes that restart what fails."""
_LONGEST_MESSAGE_BYTES = 4096


class HealthPort:
    """Listens from the moment it is made, answers from `start` on."""

    def __init__(self, health: HealthService, address: str) -> None:
        """Raises ListenError where the address cannot be listened on."""
        options = (("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", _LONGEST_MESSAGE_BYTES))
        self._server = grpc.aio.server(interceptors=[DecodingInterceptor()], options=options)
        health_pb2_grpc.add_HealthServicer_to_server(health, self._server)
        target = target_of(address)
        try:
            port = self._server.add_insecure_port(target)
        except (RuntimeError, ValueError) as error:
            raise ListenError(f"cannot listen on {address} for health: {error}") from error
        if not port:
            raise ListenError(f"cannot listen on {address} for health")
        self.address = f"{target.rpartition(':')[0]}:{port}"

    async def start(self) -> None:
        """Answer."""
        await self._server.start()

    async def close(self) -> None:
        """Answer no more."""
        await self._server.stop(None)
