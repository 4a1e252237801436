"""What can happen in a run. The log of these events is the run: everything else is a fold over it.

An event is written before it is acted on, so what is in the log may have been done, and what is not in it has not. Large
texts are not in events but in the store's blobs, by the SHA-256 of their UTF-8. This module decides nothing.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 - resolved when events are read back

from kernelevo_api.pool import Change  # noqa: TC001 - resolved when events are read back
from kernelevo_api.types import (
    BaselineKind,
    Capabilities,
    DeviceRequirement,
    Effort,
    Evaluation,
    Language,
    ProblemReport,
    Ratio,
)
from kernelevo_searcher.mechanisms import Mechanism, PolicyName
from kernelevo_searcher.memory.lessons import Recollection  # noqa: TC001 - resolved when events are read back
from kernelevo_searcher.models import ModelSettings  # noqa: TC001 - resolved when events are read back
from kernelevo_searcher.proposers import (  # noqa: TC001 - resolved when events are read back
    ActionKind,
    ReplyOutcome,
    Usage,
)

__all__ = [
    "EVENT_KINDS",
    "CandidateProposed",
    "DuplicateSkipped",
    "EvaluationFailed",
    "EvaluationFinished",
    "EvaluationStarted",
    "EvaluatorChanged",
    "EvaluatorsConnected",
    "Event",
    "FilesAsked",
    "MemoryRead",
    "ModelCallFailed",
    "ModelCallFinished",
    "ModelCallStarted",
    "ModelCallUnaffordable",
    "NothingToTune",
    "ParameterValue",
    "Paused",
    "ProblemRegistered",
    "Record",
    "Resumed",
    "RunFinished",
    "RunResumed",
    "RunSettings",
    "RunStarted",
    "SlotsChanged",
    "StartCandidate",
    "StopDecided",
    "VerificationFinished",
    "VerificationStarted",
    "event_kind",
    "text_digest",
]


def text_digest(text: str) -> str:
    """The key of a blob: SHA-256 of the text's UTF-8, in lower-case hexadecimal."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What a run was asked to do. Part of its log, so that a resumed run needs no flags."""

    seed: int = 0
    policy: PolicyName = PolicyName.EVOLVE
    without: tuple[Mechanism, ...] = ()
    """Parts of the policy that are left out."""
    evaluations: int | None = None
    """Candidates to evaluate at most; measuring one again and the final verification are not counted."""
    minutes: float | None = None
    """Time the search may take, verification not included."""
    budget_tokens: int = 1_000_000
    budget_dollars: float | None = None
    """What the models may cost; needs a known price for each of them."""
    target_speedup: float | None = None
    """Stop once the lower bound of the best reaches it."""
    floor_share: float = 0.95
    """Stop once the best runs at this share of the device's measured bandwidth."""
    patience: int | None = None
    """Evaluations without an improvement after which the search ends; absent: max(25, a quarter of the evaluations)."""
    verify: int | None = None
    """Candidates verified at the end; absent: 5 with a model, 2 without."""
    baseline: BaselineKind = BaselineKind.EAGER
    evaluators: tuple[str, ...] = ()
    """Addresses; none: one is started for the run."""
    device: DeviceRequirement | None = None
    """What to measure on; absent: the kind with the most lanes."""
    verify_on: tuple[DeviceRequirement, ...] = ()
    """Other kinds of device that the winner is verified on."""
    models: tuple[ModelSettings, ...] = ()
    """None: tuning only."""
    calls_in_flight: int = 4
    """Model calls at once, as long as fewer evaluations are."""
    prompts: str | None = None
    """Folder of templates that replace the built-in ones."""
    language: Language | None = None
    hints: str = ""
    merge_share: float = 0.0
    """Share of the calls on kernels that passed that join two of different structure."""
    memory: str | None = None
    """Bank of lessons that is read once, when the problem is registered."""
    accept_refused_problem: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StartCandidate:
    """A kernel that the user brought."""

    name: str
    source_digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterValue:
    """One parameter of the tuner, as it stands in the source."""

    name: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """First event of every run."""

    run_id: str
    version: str
    problem_name: str
    problem_digest: str
    settings: RunSettings
    start: tuple[StartCandidate, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResumed:
    """A process took the run up again; what was in flight is sent again under its own id."""

    settings: RunSettings
    by_files: bool = False
    """It writes what is asked to files, and sends nothing itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesAsked:
    """Somebody asks, by files, for so much more than is out; the search's rules may grant less."""

    prompts: int = 0
    evaluations: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatorsConnected:
    """The evaluators answered. The device is pinned for the whole run."""

    capabilities: Capabilities
    """Of the first."""
    device: DeviceRequirement
    evaluators: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatorChanged:
    """An evaluator was lost, came back, joined, left, or is not used; what it held goes to another under the same id."""

    evaluator: str
    change: Change
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotsChanged:
    """So many evaluations may be in flight at once from now on: evaluators came, went, or are full."""

    slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemRegistered:
    """The problem was audited and its baselines measured."""

    report: ProblemReport


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRead:
    """What a bank of lessons says to this run. It is not read again, whatever becomes of it."""

    bank: str
    """Its path, as the settings have it."""
    runs: tuple[str, ...] = ()
    """Ids of the runs that the lessons come from."""
    lessons: tuple[Recollection, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateProposed:
    """A new, distinct candidate."""

    candidate_id: str
    source_digest: str
    normal_digest: str
    """Of the normalised source: equal for sources that differ in comments and layout alone."""
    action: ActionKind
    parent_id: str | None = None
    other_id: str | None = None
    """The second parent of a merge."""
    idea: str = ""
    proposer: str = ""
    """"user", "problem", "tuner", or a model's name."""
    parameters: tuple[ParameterValue, ...] = ()
    call_id: str | None = None
    """The model call that it came from."""
    language: Language | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicateSkipped:
    """A proposal equal to an earlier candidate; nothing was paid to evaluate it."""

    source_digest: str
    candidate_id: str
    """The earlier candidate."""
    action: ActionKind
    parent_id: str | None = None
    idea: str = ""
    proposer: str = ""
    call_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingToTune:
    """The tuner has no configuration left to try around this candidate."""

    parent_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCallStarted:
    """Tokens were reserved and the request is about to be sent."""

    call_id: str
    action: ActionKind
    model: str
    """Its label."""
    reserved_tokens: int
    reserved_dollars: float | None = None
    """Absent where the price is not known."""
    parent_id: str | None = None
    other_id: str | None = None
    """The second parent of a merge."""
    body_digest: str | None = None
    """Of the request's body, where it was handed out in a file: somebody else sends it, and its reply is told whenever it
    comes. Absent for a call that this program sends."""
    prompt_digests: tuple[str, ...] = ()
    """Of the messages that this program sends, in their order; none for a call that was handed out, whose body has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCallUnaffordable:
    """A call was wanted, and what is neither spent nor reserved does not pay for it at its largest. Nothing was sent."""

    action: ActionKind
    model: str
    """Its label."""
    reserved_tokens: int
    """What it would have reserved."""
    reserved_dollars: float | None = None
    parent_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCallFinished:
    """A reply came, or was given up as lost; the reservation is settled by the usage."""

    call_id: str
    outcome: ReplyOutcome
    usage: Usage
    dollars: float | None = None
    """Absent where the price is not known."""
    text_digest: str | None = None
    source_digest: str | None = None
    idea: str = ""
    detail: str = ""
    cut: bool = False
    """The provider says that the reply ran into its limit, or it broke off."""
    declined: bool = False
    """The provider says that the model refused, or that a filter stepped in."""
    model: str = ""
    """As the endpoint names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCallFailed:
    """No reply: the reservation is released."""

    call_id: str
    message: str
    usage: Usage | None = None
    dollars: float | None = None
    refused: bool = False
    """The endpoint will not serve us at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationStarted:
    """An evaluation is about to be sent. Sent again under the same id until it is finished."""

    request_id: str
    candidate_id: str
    effort: Effort
    bound_speedup: float | None = None
    evaluator: str = ""
    """Address that it is sent to, and sent to again: there it is joined or replayed."""
    device: DeviceRequirement | None = None
    """Another kind of device than the run's, that the winner is verified on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationFinished:
    """What the evaluator found."""

    request_id: str
    candidate_id: str
    evaluation: Evaluation
    device: DeviceRequirement | None = None
    """As in `EvaluationStarted`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationFailed:
    """The candidate was not evaluated, and will not be: the evaluator refuses it, or is gone for good."""

    request_id: str
    candidate_id: str
    reason: str
    message: str
    device: DeviceRequirement | None = None
    """As in `EvaluationStarted`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused:
    """The run, or one of its models, waits."""

    reason: str
    model: str | None = None
    """The model whose endpoint does not answer; absent where it is the evaluators."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """The wait is over."""

    model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StopDecided:
    """The search is over; verification follows."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationStarted:
    """The best candidates are measured anew at effort final, best first."""

    candidate_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationFinished:
    """The first timing selected; the second is reported."""

    best_id: str | None = None
    speedup: Ratio | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished:
    """Last event of a run that came to its end."""

    reason: str
    best_id: str | None = None
    speedup: Ratio | None = None


Event = (
    RunStarted
    | RunResumed
    | EvaluatorsConnected
    | EvaluatorChanged
    | SlotsChanged
    | FilesAsked
    | ProblemRegistered
    | MemoryRead
    | CandidateProposed
    | DuplicateSkipped
    | NothingToTune
    | ModelCallStarted
    | ModelCallUnaffordable
    | ModelCallFinished
    | ModelCallFailed
    | EvaluationStarted
    | EvaluationFinished
    | EvaluationFailed
    | Paused
    | Resumed
    | StopDecided
    | VerificationStarted
    | VerificationFinished
    | RunFinished
)


def event_kind(event_type: type[Event]) -> str:
    """The kind as it is stored, e.g. "run_started"."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", event_type.__name__).lower()


EVENT_KINDS: dict[str, type[Event]] = {event_kind(event_type): event_type for event_type in Event.__args__}
"""Every kind that a log may hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """An event in its place in the log."""

    sequence: int
    """From 1, without gaps."""
    time: datetime
    """UTC."""
    event: Event
