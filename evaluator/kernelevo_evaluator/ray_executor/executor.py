"""Evaluations on the GPUs of a Ray cluster. Ray supplies placement, the loss of nodes, and growth; the service stays one address.

A call is carried out again, once and on another worker, where its worker or host was lost. A candidate that loses two workers is
`CRASHED`: it is its own doing until proved otherwise. What an executor reports as its own fault is the service's to retry, and no
verdict on a candidate is ever retried here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import ray
import structlog
from ray.exceptions import RayError, RayTaskError

from kernelevo_api.types import Evaluation, Stage, Verdict
from kernelevo_evaluator.executor import Executor, ExecutorFacts, ExecutorFault
from kernelevo_evaluator.ray_executor.lanes import Lanes
from kernelevo_evaluator.ray_executor.worker import CallStopped
from kernelevo_evaluator.sources import digest_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from kernelevo_api.types import Device, Limits, ProblemReport
    from kernelevo_evaluator.executor import Job, LaneState, ProblemSource, ProgressCallback
    from kernelevo_evaluator.ray_executor.lanes import Lane
    from kernelevo_evaluator.settings import EvaluatorSettings

CONNECT_S = 10.0
"""How long the cluster's head may take to answer."""
STOP_S = 10.0
"""How long a worker has to stop a call before it is killed."""
SETTLE_S = 10.0
"""How long the other workers have, once the first is up, to be counted among the devices at the start."""
LOST_WORKERS = 2
"""Workers that one candidate may lose."""
_OBJECT_STORE_BYTES = 128 << 20

_log = structlog.get_logger("kernelevo.evaluator")


class _WorkerLost(Exception):
    """The worker or its host ended during the call."""


class RayExecutor(Executor):
    """Carries evaluations out on a cluster.

    Args:
        settings: the server's.
        open_executor: makes the executor of one device, on its host; absent: what the settings ask for.
    """

    def __init__(
        self,
        settings: EvaluatorSettings,
        open_executor: Callable[[EvaluatorSettings], Awaitable[Executor]] | None = None,
    ) -> None:
        self._settings = settings
        self._open_executor = open_executor
        self._facts: ExecutorFacts | None = None
        self._lanes: Lanes | None = None
        self._count = 0
        self._room = 1
        self._connected = False

    async def start(self) -> ExecutorFacts:
        """Join the cluster and wait for its first GPUs.

        Raises:
            ExecutorFault: there is no cluster, it has no such GPU, or none came up in time; the message says which.
        """
        settings = self._settings
        # In a thread: it blocks, and in the main thread it would take SIGTERM away from the server.
        await asyncio.to_thread(self._connect)
        found = int(ray.cluster_resources().get("GPU", 0))
        self._count = settings.ray_lanes or found
        if not self._count:
            raise ExecutorFault(
                "the Ray cluster has no GPU. Where it grows on demand, say how many to ask for: --set ray_lanes=N"
            )
        if self._count > found:
            _log.warning("lanes wait for the cluster to grow", asked=self._count, there=found)
        options: dict[str, Any] = {"num_gpus": 1, "num_cpus": 0, "max_restarts": 0, "max_task_retries": 0}
        if settings.ray_accelerator_type:
            options["accelerator_type"] = settings.ray_accelerator_type
        # Of this host alone: its secrets, and limits that were worked out from its memory.
        own = {"database_url", "token_file", "tls_certificate", "tls_key", "tls_client_ca"}
        values = settings.model_dump(
            exclude=own | ({"memory_bytes", "memory_maximum_bytes"} - settings.model_fields_set)
        )
        self._lanes = Lanes(self._count, options, (values, self._open_executor), settings.ray_silence_s)
        self._lanes.open(self._fits)
        await self._first_lanes(min(self._count, found) or 1)
        assert self._facts is not None
        self._room = max((lane.room for lane in self._lanes.up), default=1)
        self._facts = replace(self._facts, devices=self.devices or ())
        return self._facts

    def _connect(self) -> None:
        settings = self._settings
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options: dict[str, Any] = {"address": settings.ray_address or None}
        if not settings.ray_address and not os.environ.get("RAY_ADDRESS") and settings.device in ("cpu", "simulated"):
            # A cluster of this host alone, with GPUs in name only.
            options = {
                "address": "local",
                "num_gpus": settings.ray_lanes or settings.simulated_lanes,
                "object_store_memory": _OBJECT_STORE_BYTES,
            }
        _reach(settings.ray_address)
        try:
            ray.init(
                namespace="kernelevo",
                log_to_driver=False,
                include_dashboard=False if options["address"] == "local" else None,
                logging_level="warning",
                **options,
            )
        except (ConnectionError, RuntimeError, ValueError, RayError) as error:
            raise ExecutorFault(f"no Ray cluster answers: {error}") from error
        self._connected = True

    def _fits(self, facts: ExecutorFacts) -> str:
        """One kind of device for one service: budgets and baselines of one say nothing of another."""
        first = self._facts
        if first is None:
            self._facts = facts
            return ""
        one, other = first.devices[0], facts.devices[0]
        if (one.kind, one.name, one.architecture) != (other.kind, other.name, other.architecture):
            return (
                f"it holds a {other.name}, this service a {one.name}: serve each kind by itself, "
                "with --set ray_accelerator_type=TYPE"
            )
        if first.toolchain != facts.toolchain:
            return "its host has other versions of what builds and runs kernels than the first one"
        return ""

    async def _first_lanes(self, expected: int) -> None:
        """Wait until the workers are up that can be; one is enough to begin."""
        assert self._lanes is not None
        lanes = self._lanes

        def tried() -> bool:
            return len(lanes.up) + len(lanes.failures) >= expected

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.ray_start_s), lanes.changed:
                await lanes.changed.wait_for(lambda: bool(lanes.up) or tried())
            if lanes.up:
                async with asyncio.timeout(SETTLE_S), lanes.changed:
                    await lanes.changed.wait_for(tried)
        if not lanes.up:
            why = next(iter(lanes.failures.values()), None)
            raise ExecutorFault(
                f"no worker could start: {why}"
                if why is not None
                else f"no GPU of the cluster was free within {self._settings.ray_start_s:g} s"
            )

    async def close(self) -> None:
        if self._lanes is not None:
            await self._lanes.close()
        if self._connected:
            self._connected = False
            await asyncio.to_thread(ray.shutdown)

    @property
    def lanes(self) -> int:
        return len(self._lanes.up) if self._lanes is not None else 0

    @property
    def concurrency(self) -> int:
        return self._count * self._room

    @property
    def healthy(self) -> bool:
        return self.lanes > 0

    @property
    def devices(self) -> tuple[Device, ...] | None:
        return tuple(device for device, _ in self._held()) or None

    @property
    def device_faults(self) -> Mapping[str, str]:
        if self._facts is None or self.healthy:
            return {}
        return {device.id: "its worker is lost, and no other one is up" for device in self._facts.devices}

    @property
    def lane_states(self) -> Mapping[str, LaneState]:
        looks = {device.id: lane.look for device, lane in self._held()}
        return {name: look.state for name, look in looks.items() if look is not None and look.state is not None}

    @property
    def warm_runners(self) -> Mapping[str, int]:
        looks = {device.id: lane.look for device, lane in self._held()}
        return {
            name: one.warm_runners for name, one in looks.items() if one is not None and one.warm_runners is not None
        }

    def _held(self) -> list[tuple[Device, Lane]]:
        """The devices that workers hold now."""
        up = self._lanes.up if self._lanes is not None else []
        return [(device, lane) for lane in up if lane.facts is not None for device in lane.facts.devices]

    async def audit(
        self, problem: ProblemSource, limits: Limits, accept_refused: bool, progress: ProgressCallback
    ) -> ProblemReport:
        for _ in range(LOST_WORKERS):
            try:
                report: ProblemReport = await self._call("audit", (problem, limits, accept_refused), progress)
            except _WorkerLost as lost:
                _log.warning("worker lost", what=problem.digest, message=str(lost))
                progress(Stage.QUEUE, "its worker was lost; again on another")
            else:
                return report
        raise ExecutorFault(f"{LOST_WORKERS} workers were lost while they audited this problem")

    async def evaluate(self, job: Job, progress: ProgressCallback) -> Evaluation:
        for _ in range(LOST_WORKERS):
            try:
                evaluation: Evaluation = await self._call("evaluate", (job,), progress)
            except _WorkerLost as lost:
                _log.warning("worker lost", what=job.evaluation_id, message=str(lost))
                progress(Stage.QUEUE, "its worker was lost; again on another")
            else:
                return evaluation
        return Evaluation(
            evaluation_id=job.evaluation_id,
            problem_digest=job.problem.digest,
            candidate_digest=digest_of(job.candidate.source),
            verdict=Verdict.CRASHED,
            message=f"{LOST_WORKERS} workers were lost while they evaluated this candidate",
            language=job.language,
            effort=job.effort,
            baseline=job.baseline,
        )

    async def _call(self, method: str, arguments: tuple[Any, ...], progress: ProgressCallback) -> Any:
        """Carry one call out on a lane. Being cancelled stops it there first.

        Raises:
            _WorkerLost: the lane is gone, and nobody knows what became of the call.
        """
        assert self._lanes is not None
        lane = await self._lanes.take()
        try:
            call = str(uuid.uuid4())
            result = asyncio.wrap_future(getattr(lane.worker, method).remote(call, *arguments).future())
            following = asyncio.create_task(_follow(lane, call, progress))
            try:
                await asyncio.wait([result])
            except asyncio.CancelledError:
                await self._stop(lane, call, result)
                raise
            finally:
                following.cancel()
            try:
                return result.result()
            except RayTaskError as error:
                raise (error.cause if isinstance(error.cause, Exception) else ExecutorFault(str(error))) from error
            except RayError as error:
                # Not taken again before its minder has seen it too; one that only could not be reached goes on with the call.
                lane.facts = None
                self._lanes.kill(lane)
                raise _WorkerLost(str(error)) from error
        finally:
            await asyncio.shield(self._lanes.give_back(lane))

    async def _stop(self, lane: Lane, call: str, result: asyncio.Future[Any]) -> None:
        """Returns when nothing of the call runs any more: told to stop first, and killed if that does not help."""
        assert self._lanes is not None
        try:
            async with asyncio.timeout(STOP_S):
                await lane.worker.cancel.remote(call)
                await asyncio.wait([result])
        except (TimeoutError, RayError):
            lane.facts = None
            self._lanes.kill(lane)
            await asyncio.wait([result])
        with contextlib.suppress(CallStopped, RayError):
            result.result()


def _reach(address: str) -> None:
    """Ray itself tries for minutes before it says that nobody is there.

    Raises:
        ExecutorFault: nothing listens at the address.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "://" in address:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except OSError as error:
        raise ExecutorFault(f"no Ray cluster answers at {address}: {error}") from error


async def _follow(lane: Lane, call: str, progress: ProgressCallback) -> None:
    """Pass progress on; advisory, so nothing of it matters if it fails."""
    seen = 0
    with contextlib.suppress(RayError):
        while told := await lane.worker.progress.remote(call, seen):
            seen += len(told)
            for stage, message in told:
                progress(stage, message)
