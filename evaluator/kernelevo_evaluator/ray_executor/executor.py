"""Evaluations on the GPUs of a Ray cluster. Ray supplies placement, the loss of nodes, and growth; the service stays one address.

A call whose worker or host was lost is carried out again, alone and elsewhere (`losses`). A candidate that loses two workers
while it runs alone is `CRASHED`. What an executor reports as its own fault is the service's to retry, and no verdict on a
candidate is ever retried here.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import ray
import structlog
from ray.exceptions import RayError, RayTaskError

from kernelevo_api.types import Evaluation, Finding, Stage, Verdict
from kernelevo_evaluator.executor import NO_SEED, Executor, ExecutorFacts, ExecutorFault, ProblemRefused
from kernelevo_evaluator.ray_executor import cluster
from kernelevo_evaluator.ray_executor.lanes import Lanes
from kernelevo_evaluator.ray_executor.losses import LAID_TO_IT, Losses
from kernelevo_evaluator.ray_executor.worker import CallStopped
from kernelevo_evaluator.sources import digest_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from kernelevo_api.types import Device, Limits, ProblemReport, Seed
    from kernelevo_evaluator.executor import Job, LaneState, ProblemSource, ProgressCallback
    from kernelevo_evaluator.ray_executor.lanes import Lane, Stay
    from kernelevo_evaluator.settings import EvaluatorSettings

STOP_S = 10.0
"""How long a worker has to stop a call before it is killed."""
SETTLE_S = 10.0
"""How long the other workers have, once the first is up, to be counted among the devices at the start."""

_log = structlog.get_logger("kernelevo.evaluator")


class _TakesWorkersDown(Exception):
    """Workers were lost while they did nothing but this."""

    def __init__(self) -> None:
        super().__init__(
            f"{LAID_TO_IT} workers were lost while they did nothing but this, on two devices where there are two"
        )


class _WorkerLost(Exception):
    """The worker or its host ended during the call."""

    def __init__(self, message: str, stay: Stay) -> None:
        super().__init__(message)
        self.stay = stay


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
        self._connected = False

    async def start(self) -> ExecutorFacts:
        """Join the cluster and wait for its first GPUs.

        Raises:
            ExecutorFault: there is no cluster, it has no such GPU, or none came up in time; the message says which.
        """
        settings = self._settings
        # In a thread: it blocks, and in the main thread it would take SIGTERM away from the server.
        await asyncio.to_thread(cluster.join, settings)
        self._connected = True
        kind = settings.ray_accelerator_type
        found = await asyncio.to_thread(cluster.count_gpus, kind)
        count = settings.ray_lanes or found
        if not count:
            there = await asyncio.to_thread(cluster.kinds_of_gpus)
            raise ExecutorFault(
                f"the Ray cluster has no GPU{f' of type {kind}' if kind else ''}"
                + (f", only {', '.join(there)}" if kind and there else "")
                + ". Where it grows on demand, say how many to ask for: --set ray_lanes=N"
            )
        if count > found:
            _log.warning("lanes wait for the cluster to grow", asked=count, there=found)
        options: dict[str, Any] = {"num_gpus": 1, "num_cpus": 0, "max_restarts": 0, "max_task_retries": 0}
        if settings.ray_accelerator_type:
            options["accelerator_type"] = settings.ray_accelerator_type
        # Of this host alone: its secrets, and limits that were worked out from its memory.
        own = {"database_url", "token_file", "tls_certificate", "tls_key", "tls_client_ca"}
        values = settings.model_dump(
            exclude=own | ({"memory_bytes", "memory_maximum_bytes"} - settings.model_fields_set)
        )
        self._lanes = Lanes(
            count, options, (values, self._open_executor), settings.ray_silence_s, lambda: self.on_room()
        )
        self._lanes.open(self._fits)
        await self._first_lanes(min(count, found) or 1)
        assert self._facts is not None
        self._facts = replace(self._facts, devices=self.devices or ())
        return self._facts

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
            raise ExecutorFault(self._why_none(lanes))

    def _why_none(self, lanes: Lanes) -> str:
        kind, seconds = self._settings.ray_accelerator_type, self._settings.ray_start_s
        if lanes.failures:
            return f"no worker could start: {next(iter(lanes.failures.values()))}"
        if lanes.placed:
            return f"{lanes.placed} workers hold a GPU of the cluster, and none of them was ready within {seconds:g} s"
        return f"no GPU of the cluster{f' of type {kind}' if kind else ''} was free within {seconds:g} s"

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
        return self._lanes.room if self._lanes is not None else 0

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
        try:
            report: ProblemReport = await self._carry(
                "audit", (problem, limits, accept_refused), progress, problem.digest
            )
        except _TakesWorkersDown as error:
            raise ProblemRefused(f"its audit cannot be carried out: {error}", code="crashed") from error
        return report

    async def seeds(
        self, problem: ProblemSource, limits: Limits, progress: ProgressCallback
    ) -> tuple[tuple[Seed, ...], tuple[Finding, ...]]:
        try:
            found: tuple[tuple[Seed, ...], tuple[Finding, ...]] = await self._carry(
                "seeds", (problem, limits), progress, problem.digest
            )
        except _TakesWorkersDown as error:
            return (), (Finding(code=NO_SEED, message=f"no kernel could be generated for a start: {error}"),)
        return found

    async def evaluate(self, job: Job, progress: ProgressCallback) -> Evaluation:
        try:
            evaluation: Evaluation = await self._carry("evaluate", (job,), progress, job.evaluation_id)
        except _TakesWorkersDown as error:
            return Evaluation(
                evaluation_id=job.evaluation_id,
                problem_digest=job.problem.digest,
                candidate_digest=digest_of(job.candidate.source),
                verdict=Verdict.CRASHED,
                message=str(error),
                language=job.language,
                effort=job.effort,
                baseline=job.baseline,
            )
        return evaluation

    async def _carry(self, method: str, arguments: tuple[Any, ...], progress: ProgressCallback, what: str) -> Any:
        """Carry one call out, again where its worker is lost.

        Raises:
            _TakesWorkersDown: it is not tried again.
            ExecutorFault: workers are lost again and again, and not by its doing as far as one can tell.
        """
        assert self._lanes is not None
        losses = Losses()
        while True:
            stay = await self._lanes.take(losses.scope, losses.devices, losses.hosts)
            try:
                return await self._call(stay, method, arguments, progress)
            except _WorkerLost as lost:
                reason = await losses.note(lost.stay, self._lanes)
                _log.warning("worker lost", what=what, reason=reason, laid_to_it=losses.laid_to_it, message=str(lost))
            if losses.convicts:
                raise _TakesWorkersDown
            if losses.exhausting:
                raise ExecutorFault(f"{losses.count} workers were lost while this ran, the last one because {reason}")
            progress(Stage.QUEUE, "its worker was lost; again on another")

    async def _call(self, stay: Stay, method: str, arguments: tuple[Any, ...], progress: ProgressCallback) -> Any:
        """Carry one call out where it has its place, which is given back. Being cancelled stops it there first.

        Raises:
            _WorkerLost: the lane is gone, and nobody knows what became of the call.
        """
        lanes, lane = self._lanes, stay.lane
        assert lanes is not None and lane is not None
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
                if lane.ended:
                    # What we end fails in whatever way it can.
                    raise _WorkerLost(str(error), stay) from error
                raise (error.cause if isinstance(error.cause, Exception) else ExecutorFault(str(error))) from error
            except RayError as error:
                # Not taken again before its minder has seen it too; one that only could not be reached goes on with the call.
                lanes.drop(lane)
                raise _WorkerLost(str(error), stay) from error
        finally:
            await asyncio.shield(lanes.give_back(stay))

    async def _stop(self, lane: Lane, call: str, result: asyncio.Future[Any]) -> None:
        """Returns when nothing of the call runs any more: told to stop first, and killed if that does not help."""
        assert self._lanes is not None
        try:
            async with asyncio.timeout(STOP_S):
                await lane.worker.cancel.remote(call)
                await asyncio.wait([result])
        except (TimeoutError, RayError):
            self._lanes.drop(lane, "a call that did not stop when it was told to had its worker killed")
            await asyncio.wait([result])
        with contextlib.suppress(CallStopped, RayError):
            result.result()


async def _follow(lane: Lane, call: str, progress: ProgressCallback) -> None:
    """Pass progress on; advisory, so nothing of it matters if it fails."""
    seen = 0
    with contextlib.suppress(RayError):
        while told := await lane.worker.progress.remote(call, seen):
            seen += len(told)
            for stage, message in told:
                progress(stage, message)
