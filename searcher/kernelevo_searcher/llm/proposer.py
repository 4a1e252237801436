"""The proposer that asks a language model.

It builds the messages, calls the endpoint, reads the reply, and reports what was paid whatever the reply was worth. It
keeps no state between calls.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from kernelevo_searcher.llm.client import ChatClient
from kernelevo_searcher.llm.messages import MODEL_ACTIONS, PromptSettings, build_messages
from kernelevo_searcher.llm.patch import PatchOutcome, PatchSettings, apply_edits, parse_edits
from kernelevo_searcher.llm.rehearsal import sample_requests
from kernelevo_searcher.llm.reply import Header, defines_entry_point, parse_reply, same_code
from kernelevo_searcher.llm.tokens import MESSAGE_TOKENS, estimate_tokens, message_text
from kernelevo_searcher.prompts import PromptLibrary, one_line
from kernelevo_searcher.proposers import ActionKind, Proposal, ReplyOutcome, Usage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelevo_searcher.llm.client import Completion, Message
    from kernelevo_searcher.llm.endpoint import EndpointSettings
    from kernelevo_searcher.proposers import CandidateView, ProposalRequest

__all__ = ["LLMProposer", "read_proposal"]

_LONGEST_IDEA = 200
_USUAL_REPLY = 0.5
"""Share of the largest reply that is foreseen: with the default limit and prompts of four to six thousand tokens it makes the
12 to 15 thousand tokens a candidate that published runs show."""


class LLMProposer:
    """Carries out rewrite, refine, fix and restart with one model behind one endpoint.

    Args:
        prompts: the templates; absent: those of this package.
        edits: ask for edits rather than whole files; absent: as `prompt_settings` say.
    """

    def __init__(
        self,
        endpoint: EndpointSettings,
        *,
        prompts: PromptLibrary | None = None,
        edits: bool | None = None,
        prompt_settings: PromptSettings | None = None,
        patch_settings: PatchSettings | None = None,
    ) -> None:
        self._client = ChatClient(endpoint)
        self._library = prompts or PromptLibrary()
        self._prompt_settings = prompt_settings or PromptSettings()
        if edits is not None:
            self._prompt_settings = dataclasses.replace(self._prompt_settings, edits=edits)
        self._patch_settings = patch_settings or PatchSettings()

    @property
    def model(self) -> str:
        """Name of the model, for the log."""
        return self._client.settings.model

    def actions(self) -> frozenset[ActionKind]:
        """The actions it can carry out."""
        return MODEL_ACTIONS

    def rehearse(self) -> None:
        """Render every prompt once, for requests of every shape, so that a broken template is found before anything is paid.

        Raises:
            PromptError: one does not parse, or uses what is not there.
        """
        self._library.check()
        for request in sample_requests():
            for edits in (False, True):
                build_messages(request, self._library, dataclasses.replace(self._prompt_settings, edits=edits))

    def messages(self, request: ProposalRequest) -> list[dict[str, str]]:
        """What the model will be asked, for those who want to see or send it themselves."""
        return build_messages(request, self._library, self._prompt_settings)

    def reserve(self, request: ProposalRequest) -> int:
        """Most tokens that this request can cost: its prompt and its largest reply. Calls nobody."""
        return self._client.reserve(self.messages(request))

    def estimate(self, request: ProposalRequest) -> Usage:
        """What this request is likely to cost: its prompt, and a usual reply. Calls nobody."""
        prompt = sum(estimate_tokens(message_text(message)) + MESSAGE_TOKENS for message in self.messages(request))
        reply = math.ceil(self._client.settings.max_reply_tokens * _USUAL_REPLY)
        return Usage(prompt_tokens=prompt, completion_tokens=reply, estimated=True)

    def body(self, request: ProposalRequest) -> dict[str, Any]:
        """The request's body for the endpoint, for those who send it by other means, e.g. a batch API."""
        return self._client.body(self.messages(request))

    def read(self, body: str, messages: Sequence[Message], parent: CandidateView | None) -> Proposal:
        """The proposal in an answer that came by other means.

        Args:
            body: what the endpoint answered, as JSON.
            messages: what it was asked.
            parent: what it was asked about.

        Raises:
            ProposerError: the answer is an error, and nothing was paid.
            ValueError: the answer is no completion.
        """
        return read_proposal(parent, self._client.read(body, messages), patch_settings=self._patch_settings)

    def read_again(self, completion: Completion, parent: CandidateView | None) -> Proposal:
        """The proposal in a reply that was recorded."""
        return read_proposal(parent, completion, patch_settings=self._patch_settings)

    async def propose(self, request: ProposalRequest) -> Proposal:
        """Ask the model. Safe to cancel.

        Raises:
            EndpointUnreachable: nobody answered within the bounds of the endpoint's settings.
            ProposerRefused: the endpoint will not serve us.
        """
        completion = await self._client.complete(self.messages(request))
        return read_proposal(request.parent, completion, patch_settings=self._patch_settings)

    async def aclose(self) -> None:
        """Let go of connections."""
        await self._client.aclose()

    def __repr__(self) -> str:
        return f"LLMProposer({self._client!r})"


def read_proposal(
    parent: CandidateView | None, completion: Completion, *, patch_settings: PatchSettings | None = None
) -> Proposal:
    """The proposal in a reply about `parent`. Edits are taken from any model that writes them for a parent, asked for or not."""
    reply = parse_reply(completion.text, cut=completion.cut, refused=completion.refused)
    outcome, source, detail = reply.outcome, reply.code, reply.detail
    if source is None and parent is not None and outcome not in {ReplyOutcome.REFUSED, ReplyOutcome.EMPTY}:
        edits, sound = parse_edits(reply.text)
        if edits or not sound:
            outcome, source, detail = _patched(parent.source, reply.text, completion.cut, patch_settings)
    if source is not None and parent is not None and same_code(source, parent.source):
        outcome, source, detail = ReplyOutcome.NO_CHANGE, None, "the candidate is what its parent was"
    return Proposal(
        outcome=outcome,
        source=source,
        idea=_idea(reply.header),
        text=completion.text,
        usage=completion.usage,
        model=completion.model,
        detail=detail,
        cut=completion.cut,
        declined=completion.refused,
    )


def _patched(parent: str, text: str, cut: bool, settings: PatchSettings | None) -> tuple[ReplyOutcome, str | None, str]:
    edits, sound = parse_edits(text)
    if not sound:
        # Half of a patch is another change than the one that was meant.
        outcome = ReplyOutcome.TRUNCATED if cut else ReplyOutcome.BAD_PATCH
        return outcome, None, "an edit was not finished"
    if cut:
        return ReplyOutcome.TRUNCATED, None, "the reply ran into its limit"
    result = apply_edits(parent, edits, settings)
    if result.outcome is PatchOutcome.NO_OP:
        return ReplyOutcome.NO_CHANGE, None, result.detail
    if result.source is None:
        return ReplyOutcome.BAD_PATCH, None, result.detail
    if not defines_entry_point(result.source):
        return ReplyOutcome.NOT_A_MODULE, None, "the patched kernel does not parse, or lost its entry point"
    return ReplyOutcome.OK, result.source, ""


def _idea(header: Header) -> str:
    name, idea = one_line(header.name, 60), one_line(header.idea, _LONGEST_IDEA)
    return f"{name}: {idea}" if name and idea else name or idea
