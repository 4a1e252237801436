"""The proposer against a real model server on loopback: messages out, proposals in, the account in order."""

from __future__ import annotations

import pytest
from tests.searcher.openai_server import OpenAIServer, Reply, serve

from kernelevo_api.types import Capabilities, Evaluation, ProblemReport, Verdict
from kernelevo_searcher.llm.endpoint import EndpointSettings, RetrySettings
from kernelevo_searcher.llm.messages import PromptSettings
from kernelevo_searcher.llm.proposer import LLMProposer
from kernelevo_searcher.llm.secret import Secret
from kernelevo_searcher.proposers import (
    ActionKind,
    CandidateView,
    EndpointUnreachable,
    Proposal,
    ProposalRequest,
    Proposer,
    ProposerRefused,
    ReplyOutcome,
)

KEY = "sk-proposer-secret-0123456789"
PARENT = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x + x\n"
CHILD = PARENT.replace("x + x", "2 * x")
WHOLE = f"Name: double\nIdea: one multiply\n\n```python\n{CHILD}```\n"
EDIT = "Name: double\nIdea: one multiply\n\n<<<<<<< SEARCH\nreturn x + x\n=======\nreturn 2 * x\n>>>>>>> REPLACE\n"


def request(action: ActionKind = ActionKind.REFINE) -> ProposalRequest:
    return ProposalRequest(
        action=action,
        problem_source="class Model: ...\n",
        report=ProblemReport(),
        capabilities=Capabilities(),
        parent=CandidateView(id="c1", source=PARENT)
        if action in {ActionKind.REFINE, ActionKind.FIX, ActionKind.MERGE}
        else None,
        other=CandidateView(id="c2", source=PARENT + "# more\n") if action is ActionKind.MERGE else None,
        failure=Evaluation(verdict=Verdict.CRASHED) if action is ActionKind.FIX else None,
    )


def proposer(server: OpenAIServer, *, edits: bool = False, **fields: object) -> LLMProposer:
    retry = RetrySettings(attempts=3, first_delay_s=0.01, longest_delay_s=0.02, patience_s=2.0)
    values: dict[str, object] = {"model": "m", "base_url": server.base_url, "retry": retry, "max_reply_tokens": 4000}
    return LLMProposer(EndpointSettings(**(values | fields)), prompt_settings=PromptSettings(edits=edits))  # type: ignore[arg-type]


async def propose(reply: Reply, action: ActionKind = ActionKind.REFINE, *, edits: bool = False) -> Proposal:
    with serve(reply) as server:
        model = proposer(server, edits=edits)
        try:
            return await model.propose(request(action))
        finally:
            await model.aclose()


def test_it_is_a_proposer() -> None:
    with serve() as server:
        model: Proposer = proposer(server)
    assert model.model == "m"
    assert model.actions() == {
        ActionKind.REWRITE,
        ActionKind.REFINE,
        ActionKind.FIX,
        ActionKind.MERGE,
        ActionKind.RESTART,
    }


@pytest.mark.parametrize(
    "action", [ActionKind.REWRITE, ActionKind.REFINE, ActionKind.FIX, ActionKind.MERGE, ActionKind.RESTART]
)
async def test_every_action_makes_a_candidate(action: ActionKind) -> None:
    proposal = await propose(Reply(content=WHOLE, prompt_tokens=900, completion_tokens=60), action)
    assert (proposal.outcome, proposal.source) == (ReplyOutcome.OK, CHILD)
    assert proposal.idea == "double: one multiply"
    assert proposal.text == WHOLE
    assert proposal.usage.total_tokens == 960
    assert proposal.model == "m"


@pytest.mark.parametrize("edits", [True, False])
async def test_edits_are_applied_to_the_parent(edits: bool) -> None:
    proposal = await propose(Reply(content=EDIT), edits=edits)
    assert (proposal.outcome, proposal.source) == (ReplyOutcome.OK, CHILD)


async def test_a_whole_file_serves_where_edits_were_asked_for() -> None:
    proposal = await propose(Reply(content=WHOLE), edits=True)
    assert (proposal.outcome, proposal.source) == (ReplyOutcome.OK, CHILD)


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (Reply(content=EDIT.replace("return x + x", "return something_else_entirely")), ReplyOutcome.BAD_PATCH),
        (Reply(content=EDIT.replace("return x + x", "x")), ReplyOutcome.BAD_PATCH),
        (Reply(content=EDIT.replace(">>>>>>> REPLACE", "")), ReplyOutcome.BAD_PATCH),
        (Reply(content=EDIT.replace(">>>>>>> REPLACE", ""), finish_reason="length"), ReplyOutcome.TRUNCATED),
        (Reply(content=EDIT.replace("2 * x", "x + x")), ReplyOutcome.NO_CHANGE),
        (Reply(content=EDIT.replace("2 * x", "x +")), ReplyOutcome.NOT_A_MODULE),
        (Reply(content=f"```python\n{PARENT}# better\n```"), ReplyOutcome.NO_CHANGE),
        (Reply(content=f"```python\n{PARENT}", finish_reason="length"), ReplyOutcome.TRUNCATED),
        (Reply(content="", finish_reason="length", reasoning="hm", reasoning_tokens=50), ReplyOutcome.TRUNCATED),
        (Reply(content="I cannot help with that."), ReplyOutcome.REFUSED),
        (Reply(content=None, refusal="No."), ReplyOutcome.REFUSED),
        (Reply(content=None), ReplyOutcome.EMPTY),
        (Reply(content="It is fast enough."), ReplyOutcome.PROSE),
        (Reply(content="Use this:\nimport torch\n"), ReplyOutcome.NO_CODE_FENCE),
        (Reply(content="```python\nx = 1\n```"), ReplyOutcome.NOT_A_MODULE),
    ],
)
async def test_useless_replies_are_paid_and_have_an_outcome(reply: Reply, outcome: ReplyOutcome) -> None:
    proposal = await propose(reply, edits=True)
    assert (proposal.outcome, proposal.source) == (outcome, None)
    assert proposal.detail
    assert proposal.usage.total_tokens == 150


async def test_the_reservation_covers_what_is_sent_and_the_largest_reply() -> None:
    with serve(Reply(content=WHOLE)) as server:
        model = proposer(server)
        reserved = model.reserve(request())
        assert not server.asked, "reserving calls nobody"
        await model.propose(request())
        await model.aclose()
    sent = sum(len(message["content"]) for message in server.asked[0].body["messages"])
    assert reserved >= 4000 + sent / 3


async def test_errors_pass_through_with_what_they_cost() -> None:
    with serve(Reply(status=503), repeat_last=True) as server:
        model = proposer(server)
        with pytest.raises(EndpointUnreachable):
            await model.propose(request())
        await model.aclose()
    with serve(Reply(status=404), repeat_last=True) as server:
        model = proposer(server)
        with pytest.raises(ProposerRefused):
            await model.propose(request())
        await model.aclose()


async def test_the_account_is_exact_over_a_storm_of_faults() -> None:
    faults = [Reply(status=429), Reply(status=500), Reply(status=503)]
    useful = [Reply(content=WHOLE, prompt_tokens=700 + number, completion_tokens=90) for number in range(12)]
    script = [entry for at, reply in enumerate(useful) for entry in (faults[at % 3], reply)]
    with serve(*script) as server:
        model = proposer(server)
        spent = 0
        for _ in useful:
            reserved = model.reserve(request())
            proposal = await model.propose(request())
            assert proposal.outcome is ReplyOutcome.OK
            assert proposal.usage.total_tokens <= reserved
            spent += proposal.usage.total_tokens
        await model.aclose()
    assert spent == server.charged_tokens


async def test_the_key_is_in_no_prompt_and_no_proposal() -> None:
    with serve(Reply(content=WHOLE), api_key=KEY) as server:
        model = proposer(server, api_key=Secret(KEY))
        proposal = await model.propose(request())
        assert KEY not in repr(model) + repr(proposal) + str(server.asked[0].body)
        await model.aclose()
