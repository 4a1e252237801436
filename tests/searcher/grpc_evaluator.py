"""The scripted evaluator behind a real gRPC server on loopback, for searchers that are processes of their own.

Every call waits at a gate, so that a test decides what is under way, and for how long, without a clock.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
from tests.searcher.scripted_evaluator import ScriptedEvaluator

from kernelevo_api import wire
from kernelevo_api.evaluator.v1 import evaluator_pb2 as pb
from kernelevo_api.evaluator.v1 import evaluator_pb2_grpc
from kernelevo_api.types import EvaluateRequest, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernelevo_api.types import Evaluation

__all__ = ["Gate", "GrpcEvaluator", "serve_evaluator"]

_LONGEST_S = 120.0
"""A test that has not come to its end by then has failed."""


class Gate:
    """Where calls wait until a test lets them through."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open = True
        self.arrived = 0
        """Calls that have come to the gate, those let through included."""

    def close(self) -> None:
        """From now on, calls wait here."""
        with self._changed:
            self._open = False

    def open(self) -> None:
        """Let those through that wait, and all that come."""
        with self._changed:
            self._open = True
            self._changed.notify_all()

    def enter(self) -> None:
        """Arrive, and wait."""
        with self._changed:
            self.arrived += 1
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._open, _LONGEST_S)

    def wait_for(self, count: int) -> None:
        """Until so many have arrived in all."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.arrived >= count, _LONGEST_S), f"{self.arrived} of {count}"


class GrpcEvaluator(evaluator_pb2_grpc.EvaluatorServiceServicer):
    """Carries each request id out once, and replays it afterwards."""

    def __init__(self) -> None:
        self._scripted = ScriptedEvaluator(speed=4.0)
        self._done: dict[str, Evaluation] = {}
        self.registrations, self.evaluations = Gate(), Gate()
        self.address = ""

    def GetCapabilities(self, request: pb.GetCapabilitiesRequest, context: grpc.ServicerContext) -> Any:
        return wire.to_message(asyncio.run(self._scripted.get_capabilities()))

    def RegisterProblem(self, request: pb.RegisterProblemRequest, context: grpc.ServicerContext) -> Iterator[Any]:
        self.registrations.enter()
        problem = wire.from_message(request.problem, Problem)
        report: Any = wire.to_message(asyncio.run(self._scripted.register_problem(problem)))
        yield pb.RegisterProblemResponse(report=report)

    def Evaluate(self, request: pb.EvaluateRequest, context: grpc.ServicerContext) -> Iterator[Any]:
        if request.request_id not in self._done:
            self.evaluations.enter()
            self._done[request.request_id] = self._scripted.judge(wire.from_message(request, EvaluateRequest))
        evaluation: Any = wire.to_message(self._done[request.request_id])
        yield pb.EvaluateResponse(evaluation=evaluation)


@contextmanager
def serve_evaluator() -> Iterator[GrpcEvaluator]:
    """One that serves until the block ends."""
    evaluator = GrpcEvaluator()
    server = grpc.server(ThreadPoolExecutor(16))
    evaluator_pb2_grpc.add_EvaluatorServiceServicer_to_server(evaluator, server)
    evaluator.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield evaluator
    finally:
        evaluator.registrations.open()
        evaluator.evaluations.open()
        server.stop(None).wait()
