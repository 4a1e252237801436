"""The standard health service, told apart from its readers: one that does not read holds up nobody.

grpcio's own servicer writes to a watcher while it holds what a change of health waits for, so that one client with a closed
window would keep a server from ever saying that it drains.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

Status = int
"""A `HealthCheckResponse.ServingStatus`."""


class HealthService(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Health by name of a service. Belongs to one event loop, and may be added to several servers."""

    def __init__(self) -> None:
        self._status: dict[str, Status] = {}
        self._changed = asyncio.Event()

    def set(self, service: str, status: Status) -> None:
        """Tell the health of a service; `""` is the server's as a whole."""
        if self._status.get(service) == status:
            return
        self._status[service] = status
        self._changed.set()
        self._changed = asyncio.Event()

    async def Check(self, request: Any, context: Any) -> Any:
        status = self._status.get(request.service)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no service of this name is served here")
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(self, request: Any, context: Any) -> None:
        last: Status | None = None
        while True:
            changed = self._changed
            status = self._status.get(request.service, health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
            if status != last:
                last = status
                await context.write(health_pb2.HealthCheckResponse(status=status))
            await changed.wait()
