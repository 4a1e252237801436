"""A server that ends where it is sent one message of the fuzzer, and knows no other: `fragile_server.py --listen ADDRESS …`."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2_grpc  # type: ignore[import-untyped]

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from fuzzing.calls import message

from kernelevo_evaluator.health import HealthService

DEADLY = message(7, 8).data


class Fragile(grpc.GenericRpcHandler):
    def service(self, handler_call_details: Any) -> Any:
        async def answer(request: bytes, context: Any) -> bytes:
            if request == DEADLY:
                os._exit(3)
            await context.abort(grpc.StatusCode.NOT_FOUND, "nothing here")
            raise AssertionError

        return grpc.unary_unary_rpc_method_handler(answer)


async def main() -> None:
    address = sys.argv[sys.argv.index("--listen") + 1]
    server = grpc.aio.server()
    health = HealthService()
    health.set("", 1)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    server.add_generic_rpc_handlers((Fragile(),))
    server.add_insecure_port(address)
    await server.start()
    await server.wait_for_termination()


asyncio.run(main())
