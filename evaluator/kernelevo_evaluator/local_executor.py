"""The executor of one host: lanes of its own, one for each GPU, or for sets of the processor's cores."""

from __future__ import annotations

import asyncio
import platform
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kernelevo_api.types import Effort, Environment, Guarantee, SandboxInfo, Stage, Tool
from kernelevo_evaluator.executor import Executor, ExecutorFacts, ExecutorFault, LaneState, ProblemRefused
from kernelevo_evaluator.lanes.carrying import Carrying, runner_limits
from kernelevo_evaluator.lanes.cores import Cores
from kernelevo_evaluator.lanes.cpu import cpu_device, cpu_languages
from kernelevo_evaluator.lanes.gpu import NoGpu, find_gpus, gpu_device, gpu_languages, share_cpus
from kernelevo_evaluator.lanes.health import SUSPICIOUS, LaneHealth
from kernelevo_evaluator.lanes.isolation import Isolation
from kernelevo_evaluator.lanes.lane import Lane
from kernelevo_evaluator.lanes.loading import Loader
from kernelevo_evaluator.lanes.memory_watchdog import DeviceMemoryWatchdog
from kernelevo_evaluator.lanes.quiet import Quiet
from kernelevo_evaluator.lanes.runners import RunnerPool, shown_to_runners, usable_cpus
from kernelevo_evaluator.lanes.seeding import seeds_of
from kernelevo_evaluator.languages.builder import Builder
from kernelevo_evaluator.languages.toolkit import cpp_compiler_version, cuda_toolkit
from kernelevo_sandbox import SandboxError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence

    from kernelevo_api.types import Evaluation, Finding, Limits, ProblemReport, Seed
    from kernelevo_evaluator.executor import Job, ProblemSource, ProgressCallback
    from kernelevo_evaluator.lanes.gpu import Gpu
    from kernelevo_evaluator.settings import ExecutorSettings
    from kernelevo_sandbox import Guarantee as Probed
    from kernelevo_sandbox import Sandbox

T = TypeVar("T")

_MOST_SPARES = 6
"""Each takes seconds to import torch, and half a gigabyte of a GPU's memory: what one evaluation a second needs."""
PROTOCOL_VERSION = 2
"""Of the referee's procedure: raised whenever an equal candidate could get another result."""


class LocalExecutor(Executor):
    """Carries evaluations out on this host."""

    def __init__(
        self, sandbox: Sandbox, settings: ExecutorSettings, guarantees: Sequence[Probed] | None = None
    ) -> None:
        """`guarantees`: what a probe of the sandbox found, where it was probed already."""
        self._sandbox = sandbox
        self._settings = settings
        self._guarantees = guarantees
        self._isolation: Isolation | None = None
        self._lanes: list[Lane] = []
        self._health = LaneHealth()
        self._facts: ExecutorFacts | None = None

    async def start(self) -> ExecutorFacts:
        settings = self._settings
        if self._sandbox.name != "none" and (shown := shown_to_runners(settings.state_dir)) is not None:
            raise ExecutorFault(
                f"the state folder {settings.state_dir} lies in {shown}, which every candidate sees: results and built objects "
                "would lie open; name another one with --state-dir"
            )
        guarantees = self._guarantees if self._guarantees is not None else await self._sandbox.probe()
        await self._sandbox.sweep()
        artefacts = Path(settings.state_dir) / "artefacts"
        gpus = self._find_gpus()
        usable = usable_cpus()
        places: list[tuple[frozenset[int], Gpu | None]]
        if gpus:
            places = list(zip(settings.lane_cpus or share_cpus(gpus, usable), gpus, strict=False))
        else:
            places = [(cpus, None) for cpus in settings.lane_cpus or (usable,)]
        for cpus, gpu in places:
            self._lanes.append(self._lane(cpus, gpu, artefacts))
        facts = [(await lane.referee()).facts for lane in self._lanes]
        await asyncio.gather(*(lane.memory_unwatched() for lane in self._lanes))
        devices = [
            gpu_device(gpu, cpus, one)
            if gpu is not None
            else cpu_device("cpu" if settings.lane_cpus is None else f"cpu{number}", cpus, one)
            for number, ((cpus, gpu), one) in enumerate(zip(places, facts, strict=True))
        ]
        triton, compiler = _installed("triton"), await asyncio.to_thread(cpp_compiler_version)
        tools = [Tool(name="python", version=platform.python_version()), Tool(name="torch", version=facts[0].torch)]
        found = {"triton": triton, "g++": compiler}
        if gpus:
            toolkit = await asyncio.to_thread(cuda_toolkit)
            found |= {
                "nvcc": toolkit.version if toolkit is not None else "",
                "driver": gpus[0].driver,
                "pycuda": _installed("pycuda"),
            }
            languages = gpu_languages(
                nvcc=bool(found["nvcc"] and compiler),
                triton=bool(triton),
                pycuda=bool(found["pycuda"]),
                cute=bool(_installed("nvidia-cutlass-dsl")),
            )
        else:
            languages = cpu_languages(bool(compiler), bool(triton))
        tools += [Tool(name=name, version=text) for name, text in found.items() if text]
        self._facts = ExecutorFacts(
            devices=tuple(devices),
            languages=languages,
            toolchain=tuple(tools),
            sandbox=_sandbox_info(self._sandbox.name, (*guarantees, *self._of_devices)),
            default_limits=settings.default_limits,
            maximum_limits=settings.maximum_limits,
            efforts=(Effort.SCREEN, Effort.FULL, Effort.FINAL),
            protocol_version=PROTOCOL_VERSION,
        )
        self._isolation = Isolation(
            self._sandbox,
            guarantees,
            seconds=settings.isolation_check_s,
            turn=self._turn_to_look,
            returned=self._isolated_again,
        )
        if self._sandbox.name != "none":  # which guarantees nothing that could be lost
            self._isolation.watch()
        return self._facts

    def _find_gpus(self) -> tuple[Gpu, ...]:
        """The GPUs to use; none where the settings ask for the processor, or where there is none and they leave it open.

        Raises:
            ExecutorFault: they ask for GPUs, and there is none.
        """
        if self._settings.device == "cpu":
            return ()
        try:
            return find_gpus()
        except NoGpu as error:
            if self._settings.device == "cuda":
                raise ExecutorFault(f"no GPU can be used: {error}") from error
            return ()

    def _lane(self, cpus: frozenset[int], gpu: Gpu | None, artefacts: Path) -> Lane:
        settings = self._settings
        quiet, cores = Quiet(), Cores.of(cpus, gpu=gpu is not None)
        # Builds on cores of their own disturb nothing that is timed: a silence that never begins.
        builds = Quiet() if cores.background_apart else quiet
        builder = Builder(
            self._sandbox,
            builds,
            artefacts,
            settings.build_workers,
            cores.background,
            architecture=gpu.architecture if gpu is not None else "",
            cpu_seconds=settings.cpu_time_s,
        )
        standard = runner_limits(settings.default_limits, settings.cpu_time_s)
        pool = RunnerPool(
            self._sandbox,
            quiet,
            cores=cores,
            standard=standard,
            spares=self._spares(cores),
            gpu=gpu,
            watchdog=DeviceMemoryWatchdog(gpu.uuid, quiet) if gpu is not None else None,
        )
        pool.refill()
        # What a reference holds of a device is its problem's to say: wide copies of its own, whatever a candidate may have. It
        # serves many evaluations, so that its processor time adds up.
        most = replace(standard, device_memory_bytes=settings.maximum_limits.device_memory_bytes, cpu_seconds=None)
        lane = Lane(
            pool,
            quiet,
            Loader(quiet, builder),
            cores=cores,
            reference_limits=most,
            gpu=gpu,
            deep_checks=settings.deep_checks,
        )
        if pool.watchdog is not None:
            pool.watchdog.on_lost = lambda reason: self._health.withdraw(lane, reason)
        return lane

    def _spares(self, cores: Cores) -> int:
        """As the settings say, or by the cores that can prepare them while another candidate is timed."""
        if self._settings.spare_runners is not None:
            return self._settings.spare_runners
        return max(1, min(_MOST_SPARES, len(cores.background) // 2)) if cores.background_apart else 1

    async def close(self) -> None:
        if self._isolation is not None:
            await self._isolation.close()
        await self._health.close()
        await asyncio.gather(*(lane.close() for lane in self._lanes))
        await self._sandbox.close()

    @property
    def lanes(self) -> int:
        return len(self._lanes)

    @property
    def concurrency(self) -> int:
        return len(self._lanes) * (1 + self._settings.build_workers)

    @property
    def healthy(self) -> bool:
        return not self._not_isolated and any(lane not in self._health.reasons for lane in self._lanes)

    @property
    def sandbox(self) -> SandboxInfo | None:
        if self._isolation is None:
            return None
        return _sandbox_info(self._sandbox.name, (*self._isolation.guarantees, *self._of_devices))

    @property
    def _of_devices(self) -> list[Probed]:
        """What is guaranteed of the lanes' devices, the one that does not hold where they differ."""
        found = [lane.pool.watchdog.guarantee for lane in self._lanes if lane.pool.watchdog is not None]
        return sorted(found, key=lambda one: one.holds)[:1]

    @property
    def device_faults(self) -> Mapping[str, str]:
        if lost := self._not_isolated:
            return {name: lost for name, _ in self._by_device()}
        reasons = self._health.reasons
        # Metrics ask from a thread of their own, so a reason may go between two looks.
        return {name: reason for name, lane in self._by_device() if (reason := reasons.get(lane)) is not None}

    @property
    def lane_states(self) -> Mapping[str, LaneState]:
        return {name: self._state(lane) for name, lane in self._by_device()}

    @property
    def warm_runners(self) -> Mapping[str, int]:
        return {name: lane.pool.warm for name, lane in self._by_device()}

    def _by_device(self) -> list[tuple[str, Lane]]:
        """Lanes under their devices' ids; none before the start is over."""
        if self._facts is None:
            return []
        return [(device.id, lane) for device, lane in zip(self._facts.devices, self._lanes, strict=True)]

    def _state(self, lane: Lane) -> LaneState:
        if self._not_isolated or lane in self._health.reasons:
            return LaneState.OUT_OF_SERVICE
        if lane.exclusive.locked():
            return LaneState.RUNNING
        return LaneState.PREPARING if lane.claims else LaneState.IDLE

    async def audit(
        self, problem: ProblemSource, limits: Limits, accept_refused: bool, progress: ProgressCallback
    ) -> ProblemReport:
        with self._working() as lane:
            async with lane.exclusive:
                try:
                    report = await self._guarded(lane.audit(problem, limits, progress))
                except (ExecutorFault, SandboxError) as error:
                    await self._examine_fault(lane, error)
                    raise
        refusing = [finding for finding in report.findings if finding.refuses]
        if refusing and not accept_refused:
            reasons = "; ".join(finding.message for finding in refusing)
            raise ProblemRefused(f"the audit refuses this problem: {reasons}", report)
        return replace(report, accepted_with_mark=bool(refusing))

    async def seeds(
        self, problem: ProblemSource, limits: Limits, progress: ProgressCallback
    ) -> tuple[tuple[Seed, ...], tuple[Finding, ...]]:
        assert limits.prepare_time is not None and limits.build_time is not None
        seconds = (limits.prepare_time + limits.build_time).total_seconds() * (1 + len(problem.policy.shapes))
        progress(Stage.BASELINE, "generating a first candidate with TorchInductor")
        with self._working() as lane:
            async with lane.exclusive:
                return await self._guarded(seeds_of(lane.pool, lane.quiet, problem, runner_limits(limits), seconds))

    async def evaluate(self, job: Job, progress: ProgressCallback) -> Evaluation:
        with self._working() as lane:
            try:
                evaluation = await self._guarded(Carrying(lane, job, self._environment(lane), progress).carry_out())
            except (ExecutorFault, SandboxError) as error:
                async with lane.exclusive:
                    await self._examine_fault(lane, error)
                raise
            if evaluation.verdict in SUSPICIOUS and lane.gpu is not None:
                async with lane.exclusive:
                    await self._health.examine(lane)
            return evaluation

    @contextmanager
    def _working(self) -> Iterator[Lane]:
        """The least loaded lane, which counts the work while it lasts; what its sandbox cannot do is the evaluator's fault."""
        lane = self._least_loaded()
        try:
            with lane.claimed():
                yield lane
        except SandboxError as error:
            raise ExecutorFault(str(error)) from error

    @property
    def _not_isolated(self) -> str:
        """What isolation lacks just now, and what to do; empty while it holds."""
        return self._isolation.reason if self._isolation is not None else ""

    async def _guarded(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._isolation is not None
        return await self._isolation.guard(work)

    async def _examine_fault(self, lane: Lane, error: Exception) -> None:
        """After our own failure: does the host still isolate, and does the device still compute? With `exclusive` held.

        Raises:
            ExecutorFault: `error` came of lost isolation.
        """
        assert self._isolation is not None
        # Without a sandbox nothing was guaranteed, and nothing is lost.
        guaranteed = self._sandbox.name != "none"
        if guaranteed and (lost := self._not_isolated or await self._isolation.check(lane.cores.background)):
            raise ExecutorFault(f"the host isolates no more: {lost}") from error
        await self._health.examine(lane)

    @asynccontextmanager
    async def _turn_to_look(self) -> AsyncIterator[frozenset[int]]:
        """A moment and cores for a probe, where nothing is timed: an idle lane's if there is one."""
        lane = min(self._lanes, key=lambda lane: (lane.exclusive.locked(), lane.claims))
        if lane.cores.background_apart:
            yield lane.cores.background
            return
        async with lane.exclusive:
            yield lane.cores.all

    def _isolated_again(self) -> None:
        for lane in self._lanes:
            lane.pool.refill()

    def _least_loaded(self) -> Lane:
        """
        Raises:
            ExecutorFault: no lane is in service.
        """
        working = [lane for lane in self._lanes if lane not in self._health.reasons and not self._not_isolated]
        if not working:
            raise ExecutorFault(f"no device is in service: {'; '.join(dict.fromkeys(self.device_faults.values()))}")
        return min(working, key=lambda lane: lane.claims)

    def _environment(self, lane: Lane) -> Environment:
        assert self._facts is not None
        return Environment(
            device=self._facts.devices[self._lanes.index(lane)],
            toolchain=self._facts.toolchain,
            sandbox_backend=self._sandbox.name,
            evaluator_version=_installed("kernelevo"),
            protocol_version=PROTOCOL_VERSION,
            host_kernel=platform.release(),
        )


def _sandbox_info(backend: str, guarantees: Sequence[Probed]) -> SandboxInfo:
    return SandboxInfo(
        backend=backend,
        guarantees=tuple(
            Guarantee(name=g.name, holds=g.holds, evidence=g.evidence, remedy=g.remedy, essential=g.essential)
            for g in guarantees
        ),
    )


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
