"""What the engine asks of whoever proposes candidates, and what it gets back.

A proposer turns one request into one proposal: it does not evaluate, keeps no state that a resumed run would miss, and
writes no events. The engine reserves its tokens before the call and settles by the usage that it reports, so whatever was
paid for comes back as a `Proposal`, however useless the reply; only what was not paid for is an exception.

    ProposerError
    ├── EndpointUnreachable   nobody answers, or not now: the engine pauses the run and tries again
    └── ProposerRefused       the endpoint answers and will not serve us (key, model, parameters): the run stops
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kernelevo_api.types import Capabilities, Evaluation, Language, ProblemReport
    from kernelevo_searcher.memory.lessons import Recollection

__all__ = [
    "ActionKind",
    "CandidateView",
    "EndpointUnreachable",
    "IdeaOutcome",
    "Proposal",
    "ProposalRequest",
    "Proposer",
    "ProposerError",
    "ProposerRefused",
    "ReplyOutcome",
    "Usage",
]


class ActionKind(enum.Enum):
    """What can be done next in a run."""

    SEED = "seed"
    """Evaluate a kernel that was there before the run: the user's own, or one that came with the problem's report."""
    TUNE = "tune"
    """Change parameters found in a parent's source. No model."""
    REWRITE = "rewrite"
    """Plan first, then a whole new kernel."""
    REFINE = "refine"
    """One named change to a parent."""
    FIX = "fix"
    """Repair a candidate that failed."""
    MERGE = "merge"
    """Join two kernels of different structure into one."""
    RESTART = "restart"
    """Begin again from the reference, told what was tried."""


class ReplyOutcome(enum.Enum):
    """What became of a model's reply. Everything but `OK` comes without a source, and was paid for all the same."""

    OK = "ok"
    TRUNCATED = "truncated"
    """The reply ran into its limit before the code was whole."""
    REFUSED = "refused"
    EMPTY = "empty"
    PROSE = "prose"
    """Words and no code."""
    NO_CODE_FENCE = "no_code_fence"
    """Code, but not where it was asked for."""
    BAD_PATCH = "bad_patch"
    """Edits that do not fit the parent."""
    NO_CHANGE = "no_change"
    """The candidate is what the parent was."""
    NOT_A_MODULE = "not_a_module"
    """The code does not parse, or does not define the entry point."""
    LOST = "lost"
    """Nobody knows: the run ended while the call was in flight. Charged by its reservation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateView:
    """A candidate as a proposer sees it."""

    id: str
    source: str
    idea: str = ""
    evaluation: Evaluation | None = None
    """The last and best that was measured of it; absent while nothing was."""
    language: Language | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IdeaOutcome:
    """One line of the ledger: what was tried, and what came of it."""

    candidate_id: str
    parent_id: str | None
    action: ActionKind
    idea: str
    outcome: str
    """For people and models, e.g. "1.42x [1.40, 1.44]" or "output_mismatch: …"."""
    speedup: float | None = None
    """Over the problem's baseline; absent where it failed or was not timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalRequest:
    """What is wanted, and everything a proposer may know."""

    action: ActionKind
    problem_source: str
    report: ProblemReport
    capabilities: Capabilities
    parent: CandidateView | None = None
    """Absent for `REWRITE` before anything passed, and for `RESTART`. With `FIX`, the candidate that failed."""
    other: CandidateView | None = None
    """With `MERGE`, the second parent."""
    tried: tuple[IdeaOutcome, ...] = ()
    """The ledger of the run, oldest first; those of the parent's own children have its id as `parent_id`."""
    examples: tuple[CandidateView, ...] = ()
    """Two or three contrasting candidates, best first; never the parent."""
    failure: Evaluation | None = None
    """With `FIX`: why the parent failed."""
    language: Language | None = None
    """Wanted; absent leaves it to the problem's policy."""
    tokens_left: int | None = None
    """Of the run's budget, before this call; absent where there is none."""
    hints: str = ""
    """The user's own advice."""
    lessons: tuple[Recollection, ...] = ()
    """Of earlier runs, the most telling first."""
    seed: int = 0
    """For whatever the proposer draws; equal requests have equal seeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one call, or of several."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    """Reasoning included."""
    reasoning_tokens: int = 0
    """Of the completion."""
    cached_tokens: int = 0
    """Of the prompt: the provider had them, and may charge less for them."""
    estimated: bool = False
    """The provider reported nothing, so this is our own estimate."""

    @property
    def total_tokens(self) -> int:
        """What the budget is charged."""
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Usage) -> Usage:
        """Both together; estimated if either is."""
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            estimated=self.estimated or other.estimated,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A paid reply, read."""

    outcome: ReplyOutcome
    source: str | None = None
    """The whole candidate, with `ReplyOutcome.OK`."""
    idea: str = ""
    """One line: what is new about it."""
    text: str = ""
    """The reply as it came."""
    usage: Usage = Usage()
    model: str = ""
    detail: str = ""
    """One line about what is wrong with the reply, empty when nothing is."""
    cut: bool = False
    """The provider says that the reply ran into its limit, or it broke off."""
    declined: bool = False
    """The provider says that the model refused, or that a filter stepped in."""


class ProposerError(Exception):
    """No proposal was made. `usage` is what the attempt cost all the same, if anything."""

    def __init__(self, message: str, *, usage: Usage | None = None) -> None:
        super().__init__(message)
        self.usage = usage


class EndpointUnreachable(ProposerError):
    """The endpoint does not answer, or is busy beyond the client's own retries; try again after `retry_after_s`."""

    def __init__(self, message: str, *, retry_after_s: float | None = None, usage: Usage | None = None) -> None:
        super().__init__(message, usage=usage)
        self.retry_after_s = retry_after_s


class ProposerRefused(ProposerError):
    """The endpoint answered that it will not serve this at all; trying again is of no use."""


class Proposer(Protocol):
    """What makes candidates out of requests, at a price in tokens."""

    @property
    def model(self) -> str:
        """Name of the model, for the log."""
        ...

    def actions(self) -> frozenset[ActionKind]:
        """The actions it can carry out."""
        ...

    def messages(self, request: ProposalRequest) -> list[dict[str, str]]:
        """What the model will be asked: `role` and `content` of each message. Equal requests give equal messages."""
        ...

    def reserve(self, request: ProposalRequest) -> int:
        """Most tokens that this request can cost: its prompt and its largest reply. Calls nobody."""
        ...

    def estimate(self, request: ProposalRequest) -> Usage:
        """What this request is likely to cost. Calls nobody."""
        ...

    async def propose(self, request: ProposalRequest) -> Proposal:
        """Carry the request out. Safe to cancel.

        Raises:
            EndpointUnreachable: nobody answered; nothing else about the request is known to be wrong.
            ProposerRefused: the endpoint will not serve us.
        """
        ...

    async def aclose(self) -> None:
        """Let go of connections."""
        ...
