"""What carries evaluations out, as the service sees it.

The service admits, queues, stores and streams; an executor owns devices, sandboxes, referees and runners. The local executor
(`kernelevo_evaluator.lanes`) runs on this host; others may place the same work elsewhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from kernelevo_api.types import Finding

if TYPE_CHECKING:
    from kernelevo_api.types import (
        BaselineKind,
        Candidate,
        Device,
        Effort,
        Evaluation,
        Language,
        LanguageSupport,
        Limits,
        ProblemPolicy,
        ProblemReport,
        SandboxInfo,
        Seed,
        Stage,
        Tool,
    )

NO_SEED = "no_seed"
"""Code of the finding that says why a problem has no seeds."""
MAKES_NO_SEEDS = "makes_no_seeds"
"""Code of the finding that says that this executor makes none for any problem, which says nothing of this one."""

ProgressCallback = Callable[["Stage", str], None]
"""Called with the stage that begins and one line for people; advisory, must not block."""


class ExecutorFault(Exception):
    """The executor itself failed: nothing is known about the candidate. The service may retry once."""


class ProblemRefused(Exception):
    """The problem cannot be used. `report` holds what the audit found, where it got that far; `code` says in one word why it
    did not."""

    def __init__(self, message: str, report: ProblemReport | None = None, *, code: str = "") -> None:
        super().__init__(message)
        self.report = report
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemSource:
    """A problem that was read, not run: its source, its digest and its policy literal."""

    source: str
    digest: str
    name: str
    policy: ProblemPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One admitted evaluation, with every choice resolved."""

    evaluation_id: str
    problem: ProblemSource
    report: ProblemReport
    candidate: Candidate
    language: Language
    effort: Effort
    limits: Limits
    """Every field set."""
    baseline: BaselineKind
    baseline_candidate: Candidate | None = None
    baseline_language: Language | None = None
    bound_speedup: float | None = None
    profile: bool = False
    skip_timing: bool = False


class LaneState(StrEnum):
    """What a lane does just now."""

    IDLE = "idle"
    PREPARING = "preparing"
    """It has jobs that are being built or loaded; none is on the device."""
    RUNNING = "running"
    """A job has the device to itself."""
    OUT_OF_SERVICE = "out_of_service"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorFacts:
    """What `GetCapabilities` and the cache key need to know of an executor."""

    devices: tuple[Device, ...]
    languages: tuple[LanguageSupport, ...]
    toolchain: tuple[Tool, ...]
    sandbox: SandboxInfo
    default_limits: Limits
    maximum_limits: Limits
    efforts: tuple[Effort, ...]
    protocol_version: int


class Executor(ABC):
    """Carries evaluations out. Cancelling a call ends its processes before the cancellation is seen by the caller."""

    on_room: Callable[[], None] = staticmethod(lambda: None)
    """Called when `concurrency` may have changed; set by whoever feeds it."""

    @abstractmethod
    async def start(self) -> ExecutorFacts:
        """Claim devices, probe isolation, warm what is kept warm.

        Raises:
            kernelevo_sandbox.SandboxUnavailable: this host cannot isolate.
        """

    @abstractmethod
    async def close(self) -> None:
        """End every process and release the devices."""

    @property
    @abstractmethod
    def lanes(self) -> int:
        """Devices that can time at once."""

    @property
    @abstractmethod
    def concurrency(self) -> int:
        """How many calls of `evaluate` are useful at once, now: lanes, and builds beside them."""

    @property
    @abstractmethod
    def healthy(self) -> bool:
        """Whether at least one lane can work."""

    @property
    def devices(self) -> tuple[Device, ...] | None:
        """The devices that are held now; `None` where they are those of the start for good."""
        return None

    @property
    def device_faults(self) -> Mapping[str, str]:
        """Devices that are out of service just now, by id, and why."""
        return {}

    @property
    def sandbox(self) -> SandboxInfo | None:
        """What isolation was last seen to guarantee; `None` where no more is known than at the start."""
        return None

    @property
    def lane_states(self) -> Mapping[str, LaneState]:
        """What the lane of each device does, by the device's id; empty where that is not known here."""
        return {}

    @property
    def warm_runners(self) -> Mapping[str, int]:
        """Runners that are ready for the next candidate, by the device's id; empty where that is not known here."""
        return {}

    @abstractmethod
    async def audit(
        self, problem: ProblemSource, limits: Limits, accept_refused: bool, progress: ProgressCallback
    ) -> ProblemReport:
        """Run the problem's audit and time its baselines.

        Raises:
            ProblemRefused: the problem cannot be used, or only with a mark that was not asked for.
            ExecutorFault: ours.
        """

    async def seeds(
        self, problem: ProblemSource, limits: Limits, progress: ProgressCallback
    ) -> tuple[tuple[Seed, ...], tuple[Finding, ...]]:
        """Candidates that need no model for an audited problem, or findings that say why there are none.

        Raises:
            ExecutorFault: ours.
        """
        return (), (Finding(code=MAKES_NO_SEEDS, message="this evaluator makes none"),)

    @abstractmethod
    async def evaluate(self, job: Job, progress: ProgressCallback) -> Evaluation:
        """Build, check and time one candidate; every failure of the candidate is a verdict.

        The evaluation comes back without `request_id`, `from_cache` and `created_at`: the service's own.

        Raises:
            ExecutorFault: ours.
        """
