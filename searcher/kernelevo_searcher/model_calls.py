"""The engine's dealings with models: requests, reservations, replies, and waiting for endpoints that do not answer.

A call reserves what it can cost at most before it is sent, in tokens and, where the price is known, in dollars, and is settled by
what it did cost. What was paid for is in the log, however useless the reply.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from kernelevo_api.types import Evaluation, Ratio, Timing, Verdict
from kernelevo_searcher.events import (
    Event,
    ModelCallFailed,
    ModelCallFinished,
    ModelCallStarted,
    ModelCallUnaffordable,
    text_digest,
)
from kernelevo_searcher.forecast import CallCost
from kernelevo_searcher.mechanisms import PolicyName
from kernelevo_searcher.models import ModelSettings
from kernelevo_searcher.policy import ModelResource, Propose
from kernelevo_searcher.proposers import (
    ActionKind,
    CandidateView,
    EndpointUnreachable,
    Proposal,
    ProposalRequest,
    Proposer,
    ProposerError,
    ReplyOutcome,
    Usage,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kernelevo_searcher.journal import Journal, Pauses

__all__ = ["ModelCalls", "ProposeSource", "lost_call"]

_EXAMPLES = 3
_FIRST_BACKOFF_S = 5.0
_LONGEST_BACKOFF_S = 120.0


class ProposeSource(Protocol):
    """Logs a candidate that a model wrote, or that it is one already, together with the events that led to it."""

    def __call__(
        self,
        source: str,
        action: ActionKind,
        *,
        before: tuple[Event, ...],
        texts: tuple[str, ...],
        parent_id: str | None,
        other_id: str | None,
        idea: str,
        proposer: str,
        call_id: str,
    ) -> None: ...


class ModelCalls:
    """All model calls of one process.

    Args:
        proposers: by the label of their model.
        cost: dollars that a usage of a model costs, by its label; absent where the price is not known.
        propose: what becomes of a source.
        wake: called when a reply has come.
    """

    def __init__(
        self,
        journal: Journal,
        proposers: Mapping[str, Proposer],
        pauses: Pauses,
        *,
        propose: ProposeSource,
        wake: Callable[[], None],
        cost: Callable[[str, Usage], float | None] | None = None,
    ) -> None:
        self._journal = journal
        self._proposers = proposers
        self._pauses = pauses
        self._propose = propose
        self._wake = wake
        self._cost = cost or (lambda _model, _usage: None)
        self._backoff = dict.fromkeys(proposers, _FIRST_BACKOFF_S)

    def resources(self) -> tuple[ModelResource, ...]:
        """The models as the policy sees them."""
        state = self._journal.state
        settings = {model.label: model for model in state.settings.models}
        return tuple(
            ModelResource(
                label=label,
                actions=proposer.actions(),
                role=settings.get(label, _PLAIN).role,
                weight=settings.get(label, _PLAIN).weight,
                least_tokens=state.least_tokens.get(label, 1),
                least_dollars=state.least_dollars.get(label, 0.0),
            )
            for label, proposer in self._proposers.items()
        )

    def settle_lost(self) -> tuple[ModelCallFinished, ...]:
        """Calls in flight when the last process ended: nobody knows what they cost, so their reservation is charged. Those that
        somebody else sends are not lost."""
        return tuple(
            lost_call(call, "the process ended while the call was under way")
            for call in self._journal.state.calls.values()
            if call.body_digest is None
        )

    def request(self, action: Propose) -> ProposalRequest:
        """What a model is asked for this action."""
        journal, state = self._journal, self._journal.state
        assert state.registered is not None and state.connected is not None
        parent = journal.view(action.parent_id) if action.parent_id is not None else None
        alone = state.settings.policy is PolicyName.INDEPENDENT
        rng = journal.rng("request")
        ranked = [candidate.id for candidate in state.ranked() if candidate.id != action.parent_id]
        # The best, and others from further down the list: examples that contrast say more than three alike.
        if action.other_id is not None:
            # The second parent is contrast enough.
            ranked = []
        chosen = ranked[:1] + sorted(rng.sample(ranked[1:], min(len(ranked[1:]), _EXAMPLES - 1)), key=ranked.index)
        return ProposalRequest(
            action=action.action,
            problem_source=journal.problem().source,
            report=state.registered.report,
            capabilities=state.connected.capabilities,
            parent=parent,
            other=journal.view(action.other_id) if action.other_id is not None else None,
            tried=() if alone else state.ledger(),
            examples=() if alone else tuple(journal.view(candidate_id) for candidate_id in chosen),
            failure=parent.evaluation if parent is not None and action.action is ActionKind.FIX else None,
            language=state.settings.language,
            tokens_left=state.budget_left,
            hints=state.settings.hints,
            lessons=state.memory.lessons if state.memory is not None and not alone else (),
            seed=rng.getrandbits(31),
        )

    def costs(self, kernel: str) -> tuple[CallCost, ...]:
        """What a call of each model is thought to cost, by the prompt that refines `kernel` with others like it as examples."""
        journal, state = self._journal, self._journal.state
        assert state.registered is not None and state.connected is not None
        view = CandidateView(id="", source=kernel, evaluation=_AS_IF_PASSED)
        request = ProposalRequest(
            action=ActionKind.REFINE,
            problem_source=journal.problem().source,
            report=state.registered.report,
            capabilities=state.connected.capabilities,
            parent=view,
            examples=(view,) * _EXAMPLES,
            language=state.settings.language,
            tokens_left=state.budget_left,
            hints=state.settings.hints,
            lessons=state.memory.lessons if state.memory is not None else (),
        )
        costs = []
        for model in self.resources():
            proposer = self._proposers[model.label]
            usage = proposer.estimate(request)
            costs.append(
                CallCost(
                    weight=model.weight,
                    tokens=usage.total_tokens,
                    most_tokens=proposer.reserve(request),
                    dollars=self._cost(model.label, usage),
                )
            )
        return tuple(costs)

    def start(self, action: Propose, request: ProposalRequest, *, body: str | None = None) -> ModelCallStarted | None:
        """Reserve and log a call; None where the budget does not reach, which is logged too.

        Args:
            body: the request's body, where it is handed out for somebody else to send.
        """
        assert action.model is not None
        state, label = self._journal.state, action.model
        reserved = self._proposers[label].reserve(request)
        # An upper bound, whichever kind of token is the dearer.
        bounds = [
            self._cost(label, Usage(prompt_tokens=reserved)),
            self._cost(label, Usage(completion_tokens=reserved)),
        ]
        known = [dollars for dollars in bounds if dollars is not None]
        dollars = max(known) if known else None
        left = state.dollars_left
        if reserved > state.budget_left or (left is not None and dollars is not None and dollars > left):
            self._journal.write(
                ModelCallUnaffordable(
                    action=action.action,
                    model=label,
                    reserved_tokens=reserved,
                    reserved_dollars=dollars,
                    parent_id=action.parent_id,
                )
            )
            return None
        texts = [message["content"] for message in self._proposers[label].messages(request)] if body is None else [body]
        digests = tuple(text_digest(text) for text in texts)
        started = ModelCallStarted(
            call_id=f"m{state.calls_started + 1}",
            action=action.action,
            model=label,
            reserved_tokens=reserved,
            reserved_dollars=dollars,
            parent_id=action.parent_id,
            other_id=action.other_id,
            body_digest=None if body is None else digests[0],
            prompt_digests=digests if body is None else (),
        )
        self._journal.write(started, texts=texts)
        return started

    async def ask(self, started: ModelCallStarted, request: ProposalRequest) -> None:
        """Send a call that was logged, and log what came of it."""
        label = started.model
        try:
            proposal = await self._proposers[label].propose(request)
        except ProposerError as error:
            unreachable = isinstance(error, EndpointUnreachable)
            self._journal.write(
                ModelCallFailed(
                    call_id=started.call_id,
                    message=_storable(str(error)),
                    usage=error.usage,
                    dollars=self._cost(label, error.usage) if error.usage is not None else None,
                    refused=not unreachable,
                )
            )
            if isinstance(error, EndpointUnreachable):
                await self._wait_for_endpoint(started, error)
        else:
            self._backoff[label] = _FIRST_BACKOFF_S
            self.settle(started, proposal)
        self._wake()

    async def _wait_for_endpoint(self, started: ModelCallStarted, error: EndpointUnreachable) -> None:
        label = started.model
        self._pauses.pause(started.call_id, _storable(str(error)), model=label)
        delay = error.retry_after_s or self._backoff[label]
        self._backoff[label] = min(2 * self._backoff[label], _LONGEST_BACKOFF_S)
        try:
            await asyncio.sleep(delay)
        finally:
            self._pauses.go_on(started.call_id, model=label)

    def settle(self, started: ModelCallStarted, proposal: Proposal) -> None:
        """Log a reply, what it cost, and the candidate in it."""
        # A reply may hold text that cannot be stored as UTF-8.
        text = _storable(proposal.text)
        source = _storable(proposal.source) if proposal.source is not None else None
        finished = ModelCallFinished(
            call_id=started.call_id,
            outcome=proposal.outcome,
            usage=proposal.usage,
            dollars=self._cost(started.model, proposal.usage),
            text_digest=text_digest(text),
            source_digest=text_digest(source) if source is not None else None,
            idea=_storable(proposal.idea),
            detail=_storable(proposal.detail),
            cut=proposal.cut,
            declined=proposal.declined,
            model=_storable(proposal.model),
        )
        if source is None:
            self._journal.write(finished, texts=(text,))
            return
        self._propose(
            source,
            started.action,
            before=(finished,),
            texts=(text,),
            parent_id=started.parent_id,
            other_id=started.other_id,
            idea=finished.idea,
            proposer=proposal.model or started.model,
            call_id=started.call_id,
        )


def lost_call(call: ModelCallStarted, why: str) -> ModelCallFinished:
    """The end of a call of which nobody knows what it cost: its reservation is charged."""
    return ModelCallFinished(
        call_id=call.call_id,
        outcome=ReplyOutcome.LOST,
        usage=Usage(prompt_tokens=call.reserved_tokens, estimated=True),
        dollars=call.reserved_dollars,
        detail=why,
    )


_PLAIN = ModelSettings(name="")
_AS_IF_PASSED = Evaluation(verdict=Verdict.PASSED, timing=Timing(speedup=Ratio(value=1.0, low=1.0, high=1.0)))


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
