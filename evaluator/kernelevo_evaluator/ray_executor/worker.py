"""What runs on a cluster's host: a worker that holds one GPU and an executor of it, with its runners kept warm.

An actor rather than tasks: a task on a GPU gets a fresh process each time, and would begin cold. The result of a call is its one
return value; progress is asked for beside it and may be lost.
"""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import ray

from kernelevo_api.types import DeviceKind
from kernelevo_evaluator.lanes.runners import usable_cpus
from kernelevo_evaluator.logs import configure
from kernelevo_evaluator.opening import prepare_host
from kernelevo_evaluator.ray_executor.place import cores_of_lane
from kernelevo_evaluator.settings import EvaluatorSettings, parse_core_sets

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kernelevo_api.types import Device, Evaluation, Finding, Limits, ProblemReport, Seed, Stage
    from kernelevo_evaluator.executor import Executor, ExecutorFacts, Job, LaneState, ProblemSource, ProgressCallback

T = TypeVar("T")


class CallStopped(Exception):
    """The call was cancelled, and nothing of it runs any more."""


@dataclass(frozen=True, slots=True)
class Look:
    """How a worker's device is doing."""

    healthy: bool
    """Whether it can still be used."""
    state: LaneState | None
    warm_runners: int | None


class _Call:
    """One call under way."""

    def __init__(self) -> None:
        self.told: list[tuple[Stage, str]] = []
        self.more = asyncio.Event()
        self.task: asyncio.Task[Any] | None = None
        self.ended = False

    def tell(self, stage: Stage, message: str) -> None:
        self.told.append((stage, message))
        self.more.set()


class Worker:
    """Holds one GPU. Made an actor by `kernelevo_evaluator.ray_executor.lanes`.

    Args:
        settings: the server's, as plain values.
        open_executor: makes the executor of this host's device; absent: what the settings ask for.
    """

    def __init__(
        self, settings: dict[str, Any], open_executor: Callable[[EvaluatorSettings], Awaitable[Executor]] | None = None
    ) -> None:
        self._settings = _of_this_device(EvaluatorSettings(**settings))
        self._open = open_executor or _open
        self._executor: Executor | None = None
        self._devices: tuple[Device, ...] = ()
        self._calls: dict[str, _Call] = {}

    async def host(self) -> str:
        """The cluster's id of the host that this was placed on."""
        return str(ray.get_runtime_context().get_node_id())

    async def start(self) -> tuple[ExecutorFacts, int]:
        """Claim the device; returns what it is, and how many calls are useful at once.

        Raises:
            Unsound, SandboxUnavailable, ExecutorFault: candidates cannot be evaluated here.
        """
        configure(self._settings)
        self._executor = await self._open(self._settings)
        facts = await self._executor.start()
        # A GPU's id is its own in the world; what other devices are called is their host's word alone.
        place = f"{(await self.host())[:8]}/{_slot()}"
        self._devices = tuple(
            device if device.kind is DeviceKind.CUDA else replace(device, id=f"{place}/{device.id}")
            for device in facts.devices[:1]
        )
        return replace(facts, devices=self._devices), self._executor.concurrency

    async def audit(self, call: str, problem: ProblemSource, limits: Limits, accept_refused: bool) -> ProblemReport:
        """As an executor's."""
        return await self._carry(call, lambda told: self._held.audit(problem, limits, accept_refused, told))

    async def seeds(
        self, call: str, problem: ProblemSource, limits: Limits
    ) -> tuple[tuple[Seed, ...], tuple[Finding, ...]]:
        """As an executor's."""
        return await self._carry(call, lambda told: self._held.seeds(problem, limits, told))

    async def evaluate(self, call: str, job: Job) -> Evaluation:
        """As an executor's; the device is named as the cluster's devices are."""
        found = await self._carry(call, lambda told: self._held.evaluate(job, told))
        if found.environment is None or found.environment.device is None:
            return found
        return replace(found, environment=replace(found.environment, device=self._devices[0]))

    async def progress(self, call: str, seen: int) -> list[tuple[Stage, str]]:
        """What was told since so many were seen, as soon as there is anything; empty once the call has ended."""
        under_way = self._calls.get(call)
        if under_way is None:
            return []
        while len(under_way.told) <= seen and not under_way.ended:
            under_way.more.clear()
            await under_way.more.wait()
        return under_way.told[seen:]

    async def cancel(self, call: str) -> None:
        """Stop a call; returns when nothing of it runs any more."""
        under_way = self._calls.get(call)
        if under_way is not None and under_way.task is not None:
            under_way.task.cancel()
            await asyncio.wait([under_way.task])

    async def alive(self, seconds: float) -> Look:
        """After so many seconds, how the device is doing."""
        await asyncio.sleep(seconds)
        held = self._held
        return Look(
            held.healthy, next(iter(held.lane_states.values()), None), next(iter(held.warm_runners.values()), None)
        )

    async def close(self) -> None:
        """End every process and release the device."""
        if self._executor is not None:
            await self._executor.close()

    @property
    def _held(self) -> Executor:
        assert self._executor is not None
        return self._executor

    async def _carry(self, call: str, work: Callable[[ProgressCallback], Awaitable[T]]) -> T:
        under_way = self._calls[call] = _Call()

        async def run() -> T:
            return await work(under_way.tell)

        under_way.task = asyncio.create_task(run())
        try:
            await asyncio.wait([under_way.task])
            if under_way.task.cancelled():
                raise CallStopped
            result: T = under_way.task.result()
            return result
        finally:
            under_way.ended = True
            under_way.more.set()
            del self._calls[call]


async def _open(settings: EvaluatorSettings) -> Executor:
    prepared = await prepare_host(settings, lambda text: print(text, file=sys.stderr))  # noqa: T201
    return prepared.make()


def _of_this_device(settings: EvaluatorSettings) -> EvaluatorSettings:
    """Settings of the one lane that this worker is; what it builds is kept for the device, not shared with another's worker."""
    folder = Path(settings.state_dir) / "ray" / _slot()
    cores = cores_of_lane(
        _lanes_of_host(),
        usable_cpus(),
        parse_core_sets(settings.lane_cpus),
        gpu=settings.device in ("auto", "cuda"),
    )
    lane_cpus = ",".join(map(str, sorted(cores)))
    return settings.model_copy(update={"state_dir": folder, "simulated_lanes": 1, "lane_cpus": lane_cpus})


def _lanes_of_host() -> int:
    """How many GPUs the cluster counts on this host."""
    here = ray.get_runtime_context().get_node_id()
    return sum(int(node["Resources"].get("GPU", 0)) for node in ray.nodes() if node["NodeID"] == here)


def _slot() -> str:
    """Which of its host's GPUs Ray gave this worker."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "").replace(",", "-") or "0"
