"""Health in plain text on an address of its own, for probes that speak no TLS."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kernelevo_api.evaluator.v1 import evaluator_pb2, evaluator_pb2_grpc
from kernelevo_api.health import SERVICE
from kernelevo_evaluator.health_port import LIVENESS
from kernelevo_evaluator.server import HEALTH_POLL_S
from kernelevo_evaluator.sockets import ListenError

pytestmark = pytest.mark.timeout(120)
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


async def test_tells_health_and_nothing_else(host: Any) -> None:
    await host.start(health="127.0.0.1:0")
    async with grpc.aio.insecure_channel(host.server.health_address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)

        async def ask(service: str) -> int:
            return (await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=30)).status

        assert [await ask(name) for name in ("", SERVICE, LIVENESS)] == [SERVING] * 3
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await evaluator_pb2_grpc.EvaluatorServiceStub(channel).GetCapabilities(
                evaluator_pb2.GetCapabilitiesRequest(), timeout=30
            )
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE), timeout=30 + HEALTH_POLL_S)
        assert (await watch.read()).status == SERVING
        host.executor.well = False
        assert (await watch.read()).status == NOT_SERVING
        assert await ask(LIVENESS) == SERVING, "a restart does not bring a device back"
        watch.cancel()


async def test_an_address_that_cannot_be_listened_on_says_so(host: Any) -> None:
    await host.start()
    assert host.server.health_address == ""
    await host.stop()
    with pytest.raises(ListenError, match="for health"):
        await host.start(health="192.0.2.1:1")
