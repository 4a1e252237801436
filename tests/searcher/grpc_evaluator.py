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
from kernelevo_api.types import EvaluateRequest, Problem, ProblemReport, Seed

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
        self._limit: int | None = None
        self.arrived = 0
        """Calls that have come to the gate, those let through included."""

    def close(self) -> None:
        """From now on, calls wait here."""
        with self._changed:
            self._open = False

    def close_after(self, count: int) -> None:
        """Let so many through in all, of which the last one waits here with those that come after it."""
        with self._changed:
            self._limit = count

    def open(self) -> None:
        """Let those through that wait, and all that come."""
        with self._changed:
            self._open, self._limit = True, None
            self._changed.notify_all()

    def enter(self) -> None:
        """Arrive, and wait."""
        with self._changed:
            self.arrived += 1
            self._open = self._open and (self._limit is None or self.arrived < self._limit)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._open, _LONGEST_S)

    def wait_for(self, count: int) -> None:
        """Until so many have arrived in all."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.arrived >= count, _LONGEST_S), f"{self.arrived} of {count}"


class GrpcEvaluator(evaluator_pb2_grpc.EvaluatorServiceServicer):
    """Carries each request id out once, and replays it afterwards."""

    def __init__(self, seeds: tuple[Seed, ...] = ()) -> None:
        self._scripted = ScriptedEvaluator(speed=4.0)
        self._scripted.seeds = seeds
        self.carried_out: list[str] = []
        """Request ids, in the order in which they were done."""
        self._done: dict[str, Evaluation] = {}
        self.registrations, self.evaluations = Gate(), Gate()
        self.address = ""

    def GetCapabilities(self, request: pb.GetCapabilitiesRequest, context: grpc.ServicerContext) -> Any:
        return wire.to_message(asyncio.run(self._scripted.get_capabilities()))

    def RegisterProblem(self, request: pb.RegisterProblemRequest, context: grpc.ServicerContext) -> Iterator[Any]:
        self.registrations.enter()
        problem = wire.from_message(request.problem, Problem)
        report: Any = wire.to_message(asyncio.run(self._register(problem, request.with_seeds)))
        yield pb.RegisterProblemResponse(report=report)

    async def _register(self, problem: Problem, with_seeds: bool) -> ProblemReport:
        return await self._scripted.register_problem(problem, with_seeds=with_seeds)

    def Evaluate(self, request: pb.EvaluateRequest, context: grpc.ServicerContext) -> Iterator[Any]:
        if request.request_id not in self._done:
            self.evaluations.enter()
            self._done[request.request_id] = self._scripted.judge(wire.from_message(request, EvaluateRequest))
            self.carried_out.append(request.request_id)
        evaluation: Any = wire.to_message(self._done[request.request_id])
        yield pb.EvaluateResponse(evaluation=evaluation)


@contextmanager
def serve_evaluator(seeds: tuple[Seed, ...] = ()) -> Iterator[GrpcEvaluator]:
    """One that serves until the block ends."""
    evaluator = GrpcEvaluator(seeds)
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
