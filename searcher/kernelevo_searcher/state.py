"""What a run has come to: a fold over its events, and nothing else.

Equal logs give equal states. Policy, engine, command line and report all read this one; none of them keeps a second account.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernelevo_api.types import Effort
from kernelevo_searcher.candidates import CandidateState, Elsewhere, is_ours, summary_of
from kernelevo_searcher.events import (
    CandidateProposed,
    DuplicateSkipped,
    EvaluationFailed,
    EvaluationFinished,
    EvaluationStarted,
    EvaluatorsConnected,
    Event,
    MemoryRead,
    ModelCallFailed,
    ModelCallFinished,
    ModelCallStarted,
    ModelCallUnaffordable,
    NothingToTune,
    Paused,
    ProblemRegistered,
    Record,
    Resumed,
    RunFinished,
    RunResumed,
    RunSettings,
    RunStarted,
    SlotsChanged,
    StopDecided,
    VerificationFinished,
    VerificationStarted,
)
from kernelevo_searcher.proposers import ActionKind, CandidateView, IdeaOutcome, ReplyOutcome
from kernelevo_searcher.spending import Spending

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from kernelevo_api.types import DeviceRequirement, Language
    from kernelevo_searcher.proposers import Usage

__all__ = ["RunState", "replay"]

_IMPROVEMENT = 1.005
"""Factor on the lower bound that counts as progress: the best of many noisy measurements always creeps a little."""


@dataclass(slots=True, kw_only=True)
class RunState:
    """The run so far. Only `apply` changes it."""

    started: RunStarted | None = None
    settings: RunSettings = field(default_factory=RunSettings)
    connected: EvaluatorsConnected | None = None
    registered: ProblemRegistered | None = None
    memory: MemoryRead | None = None
    slots: int = 0
    """Evaluations that may be in flight at once; 0 before anybody knows."""
    candidates: dict[str, CandidateState] = field(default_factory=dict)
    by_normal_digest: dict[str, str] = field(default_factory=dict)
    in_flight: dict[str, EvaluationStarted] = field(default_factory=dict)
    """Evaluations sent and not finished, by request id."""
    calls: dict[str, ModelCallStarted] = field(default_factory=dict)
    """Model calls sent and not finished, by call id."""
    attempts: Counter[tuple[str, Effort]] = field(default_factory=Counter)
    """Requests sent for each candidate and effort."""
    elsewhere: dict[tuple[str, DeviceRequirement], Elsewhere] = field(default_factory=dict)
    """What came of verifying a candidate on another kind of device than the run's."""
    attempts_elsewhere: Counter[tuple[str, DeviceRequirement]] = field(default_factory=Counter)
    """Requests sent for that."""
    tuned_out: set[str] = field(default_factory=set)
    fixes_given_up: set[str] = field(default_factory=set)
    """Failed candidates whose repair brought nothing new."""
    seeds_taken: set[str] = field(default_factory=set)
    """Source digests of the seeds that were proposed or found to be duplicates."""
    duplicates: int = 0
    spending: Spending = field(default_factory=Spending)
    replies: int = 0
    useless_replies: int = 0
    """Replies without a candidate."""
    replies_in_a_row_without_news: int = 0
    """Replies without a candidate, or with one that was there already."""
    lapsed: dict[str, ModelCallStarted] = field(default_factory=dict)
    """Calls handed out in a file and given up, or told to have failed: a reply may come all the same."""
    lapsed_paid: set[str] = field(default_factory=set)
    """Of these, the ones that were charged by their reservation."""
    calls_started: int = 0
    least_tokens: dict[str, int] = field(default_factory=dict)
    """By model, the tokens below which its calls were found to be too large for what was left."""
    least_dollars: dict[str, float] = field(default_factory=dict)
    actions: Counter[ActionKind] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    """Replies to what models were asked about each family."""
    tuned: Counter[str] = field(default_factory=Counter)
    """What the tuner made of each family."""
    last_action: ActionKind | None = None
    """Of the last proposal that was no seed."""
    improvements: list[tuple[int, str]] = field(default_factory=list)
    """Evaluations done at that moment, and the candidate that then became the best."""
    best_id: str | None = None
    """Highest lower bound of the speedup."""
    evaluated: int = 0
    """Candidates of which anything was measured."""
    model_evaluated: int = 0
    """Of these, made by a model."""
    tokens_at_improvement: int = 0
    model_evaluated_at_improvement: int = 0
    restarts_since_improvement: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    """Models whose endpoint will not serve us, and why."""
    paused: dict[str | None, str] = field(default_factory=dict)
    """Models whose endpoint does not answer, and why; under `None` the evaluators."""
    stop: StopDecided | None = None
    verifying: VerificationStarted | None = None
    verified: VerificationFinished | None = None
    finished: RunFinished | None = None
    last_sequence: int = 0
    active_s: float = 0.0
    """Time that processes worked on the run; time between an end and a resume is not counted."""
    last_time: datetime | None = None

    @property
    def usage(self) -> Usage:
        """Tokens of all calls that ended."""
        return self.spending.total.usage

    @property
    def budget_left(self) -> int:
        """Tokens neither spent nor reserved."""
        reserved = sum(call.reserved_tokens for call in self.calls.values())
        return self.settings.budget_tokens - self.usage.total_tokens - reserved

    @property
    def dollars_left(self) -> float | None:
        """Dollars neither spent nor reserved; absent without a budget in dollars."""
        if self.settings.budget_dollars is None:
            return None
        reserved = sum(call.reserved_dollars or 0.0 for call in self.calls.values())
        return self.settings.budget_dollars - self.spending.total.dollars - reserved

    @property
    def best(self) -> CandidateState | None:
        return self.candidates[self.best_id] if self.best_id is not None else None

    @property
    def requests_in_flight(self) -> int:
        return len(self.in_flight)

    def is_in_flight(self, candidate_id: str, effort: Effort | None = None) -> bool:
        """Whether an evaluation of it is under way."""
        return any(
            started.candidate_id == candidate_id and effort in (None, started.effort)
            for started in self.in_flight.values()
        )

    def ranked(self) -> list[CandidateState]:
        """Candidates that passed and were timed, highest lower bound of the speedup first."""
        valid = [
            (-speedup.low, candidate.order, candidate)
            for candidate in self.candidates.values()
            if (speedup := candidate.speedup) is not None
        ]
        return [candidate for *_, candidate in sorted(valid, key=lambda item: item[:2])]

    def active_at(self, time: datetime) -> float:
        """`active_s` at a later time, of a process that is at work."""
        # What was only made may lie for days before somebody works on it.
        if self.last_time is None or self.last_sequence <= 1:
            return self.active_s
        return self.active_s + max(0.0, (time - self.last_time).total_seconds())

    def apply(self, record: Record) -> None:
        """Fold one event in. Records come in the order of the log."""
        if not isinstance(record.event, RunResumed):
            self.active_s = self.active_at(record.time)
        self.last_time = record.time
        self.last_sequence = record.sequence
        self._apply(record.event)

    def _apply(self, event: Event) -> None:
        match event:
            case RunStarted():
                self.started = event
                self.settings = event.settings
            case RunResumed():
                self._resume(event)
            case EvaluatorsConnected():
                self.connected = event
            case SlotsChanged():
                self.slots = event.slots
            case ProblemRegistered():
                self.registered = event
            case MemoryRead():
                self.memory = event
            case CandidateProposed():
                self._propose(event)
            case DuplicateSkipped():
                self.duplicates += 1
                self.replies_in_a_row_without_news += event.call_id is not None
                if event.action is ActionKind.FIX and event.parent_id is not None:
                    self.fixes_given_up.add(event.parent_id)
                self._acted(event.action, event.source_digest)
            case NothingToTune():
                self.tuned_out.add(event.parent_id)
            case ModelCallStarted():
                self.calls[event.call_id] = event
                self.calls_started += 1
                if event.action is ActionKind.RESTART:
                    self.restarts_since_improvement += 1
            case ModelCallUnaffordable():
                self._note_unaffordable(event)
            case ModelCallFinished():
                call = self._settle(event)
                if call is not None and call.parent_id is not None:
                    self.asked[self.candidates[call.parent_id].family] += 1
                if call is not None and call.action is ActionKind.FIX and call.parent_id and not event.source_digest:
                    self.fixes_given_up.add(call.parent_id)
                self.replies += 1
                useless = event.source_digest is None
                self.useless_replies += useless
                self.replies_in_a_row_without_news += useless
            case ModelCallFailed():
                call = self._settle(event)
                if event.refused and call is not None:
                    self.refused[call.model] = event.message
            case EvaluationStarted():
                self.in_flight[event.request_id] = event
                if event.device is not None:
                    self.attempts_elsewhere[event.candidate_id, event.device] += 1
                else:
                    self.attempts[event.candidate_id, event.effort] += 1
            case EvaluationFinished():
                self._evaluate(event)
            case EvaluationFailed():
                self._fail(event)
            case Paused():
                self.paused[event.model] = event.reason
            case Resumed():
                self.paused.pop(event.model, None)
            case StopDecided():
                self.stop = event
            case VerificationStarted():
                self.verifying = event
            case VerificationFinished():
                self.verified = event
            case RunFinished():
                self.finished = event

    def _resume(self, event: RunResumed) -> None:
        self.paused.clear()
        self.refused.clear()
        if event.settings != self.settings:
            # Asked for something else than what the run ended on: the search goes on from where it stands.
            self.stop = self.verifying = self.verified = self.finished = None
        self.settings = event.settings

    def _propose(self, event: CandidateProposed) -> None:
        if event.call_id is not None:
            self.replies_in_a_row_without_news = 0
        parent = self.candidates[event.parent_id] if event.parent_id is not None else None
        family = event.candidate_id
        if parent is not None:
            parent.children += 1
            if event.action is ActionKind.TUNE:
                family = parent.family
                self.tuned[family] += 1
        self.candidates[event.candidate_id] = CandidateState(proposed=event, order=len(self.candidates), family=family)
        self.by_normal_digest[event.normal_digest] = event.candidate_id
        self._acted(event.action, event.source_digest)

    def _acted(self, action: ActionKind, source_digest: str) -> None:
        self.actions[action] += 1
        if action is ActionKind.SEED:
            self.seeds_taken.add(source_digest)
        else:
            self.last_action = action

    def _note_unaffordable(self, event: ModelCallUnaffordable) -> None:
        """Until more is left than now, no call of this model is wanted: smaller ones were not asked for."""
        if event.reserved_tokens > self.budget_left:
            known = self.least_tokens.get(event.model, 0)
            self.least_tokens[event.model] = max(known, self.budget_left + 1)
            return
        least = (self.dollars_left or 0.0) + 1e-9
        self.least_dollars[event.model] = max(self.least_dollars.get(event.model, 0.0), least)

    def _settle(self, event: ModelCallFinished | ModelCallFailed) -> ModelCallStarted | None:
        call = self.calls.pop(event.call_id, None) or self.lapsed.pop(event.call_id, None)
        if call is not None and call.body_digest is not None and not _is_reply(event):
            self.lapsed[event.call_id] = call
            if event.usage is not None:
                self.lapsed_paid.add(event.call_id)
        self.spending.count(
            call.action.value if call is not None else "unknown",
            call.model if call is not None else "unknown",
            useful=isinstance(event, ModelCallFinished) and event.source_digest is not None,
            failed=isinstance(event, ModelCallFailed),
            usage=event.usage,
            dollars=event.dollars,
        )
        return call

    def _fail(self, event: EvaluationFailed) -> None:
        self.in_flight.pop(event.request_id, None)
        if event.device is not None:
            self.elsewhere[event.candidate_id, event.device] = Elsewhere(trouble=event.message)
        else:
            self.candidates[event.candidate_id].unevaluable = event.message

    def _evaluate(self, event: EvaluationFinished) -> None:
        started = self.in_flight.pop(event.request_id, None)
        if event.device is not None:
            if not is_ours(event.evaluation):
                self.elsewhere[event.candidate_id, event.device] = Elsewhere(evaluation=event.evaluation)
            return
        candidate = self.candidates[event.candidate_id]
        effort = started.effort if started is not None else event.evaluation.effort or Effort.FULL
        if is_ours(event.evaluation):
            candidate.faults += 1
            return
        first = not candidate.evaluations
        candidate.measured(effort, event.evaluation)
        if first:
            self.evaluated += 1
            self.model_evaluated += candidate.proposed.call_id is not None
        if effort is not Effort.FINAL:
            self._find_best()

    def _find_best(self) -> None:
        ranked = self.ranked()
        best_id = ranked[0].id if ranked else None
        previous = self.best
        if best_id is not None and (previous is None or ranked[0].low > previous.low * _IMPROVEMENT):
            self.improvements.append((self.evaluated, best_id))
            self.tokens_at_improvement = self.usage.total_tokens
            self.model_evaluated_at_improvement = self.model_evaluated
            self.restarts_since_improvement = 0
        self.best_id = best_id

    def verified_elsewhere(self) -> tuple[tuple[DeviceRequirement, Elsewhere], ...]:
        """Of a finished run: the other kinds of device that its winner was to be verified on, and what came of each."""
        if self.finished is None or self.finished.best_id is None:
            return ()
        nothing = Elsewhere(trouble="it came to nothing, through no fault of the kernel's")
        return tuple(
            (device, self.elsewhere.get((self.finished.best_id, device), nothing)) for device in self.settings.verify_on
        )

    def ledger(self) -> tuple[IdeaOutcome, ...]:
        """Every idea that was evaluated, oldest first, and what came of it."""
        return tuple(
            IdeaOutcome(
                candidate_id=candidate.id,
                parent_id=candidate.parent_id,
                action=candidate.proposed.action,
                idea=candidate.proposed.idea,
                outcome=summary_of(candidate.evaluation),
                speedup=candidate.speedup.value if candidate.speedup is not None else None,
            )
            for candidate in self.candidates.values()
            if candidate.evaluation is not None
        )

    def view(self, candidate_id: str, source: str) -> CandidateView:
        """The candidate as a proposer sees it."""
        candidate = self.candidates[candidate_id]
        evaluation = candidate.evaluation
        language: Language | None = evaluation.language if evaluation is not None else candidate.proposed.language
        return CandidateView(
            id=candidate.id,
            source=source,
            idea=candidate.proposed.idea,
            evaluation=evaluation,
            language=language,
        )


def _is_reply(event: ModelCallFinished | ModelCallFailed) -> bool:
    return isinstance(event, ModelCallFinished) and event.outcome is not ReplyOutcome.LOST


def replay(records: Iterable[Record]) -> RunState:
    """The state that a log comes to."""
    state = RunState()
    for record in records:
        state.apply(record)
    return state
