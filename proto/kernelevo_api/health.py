"""The standard health service, as a client sees it: a stream that says whether an evaluator takes work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from kernelevo_api.errors import Unreachable, from_rpc_error
from kernelevo_api.evaluator.v1 import evaluator_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SERVICE = evaluator_pb2.DESCRIPTOR.services_by_name["EvaluatorService"].full_name
"""Name under which an evaluator tells its health."""


async def watch_health(channel: grpc.aio.Channel, metadata: Any, address: str) -> AsyncIterator[bool]:
    """True while the evaluator takes work, false while it drains or has no healthy device; one value for each change.

    Raises:
        Unreachable: the connection ended.
        ContractViolation: the server has no health service.
    """
    stream = health_pb2_grpc.HealthStub(channel).Watch(
        health_pb2.HealthCheckRequest(service=SERVICE), metadata=metadata
    )
    try:
        async for state in stream:
            yield state.status == health_pb2.HealthCheckResponse.SERVING
    except grpc.aio.AioRpcError as raised:
        raise from_rpc_error(raised, address) from raised
    finally:
        stream.cancel()
    raise Unreachable(f"{address} ended the stream of its health")
