"""The responses protocol against a real HTTP server on loopback: every kind of reply has an outcome, and its price."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.searcher.openai_server import OpenAIServer, Reply, serve

from kernelevo_searcher.llm.client import ChatClient, Completion
from kernelevo_searcher.llm.dialect import Failed, NoReply, dialect_of
from kernelevo_searcher.llm.endpoint import EndpointSettings, RetrySettings
from kernelevo_searcher.llm.proposer import read_proposal
from kernelevo_searcher.llm.secret import Secret
from kernelevo_searcher.llm.wire import usage_of
from kernelevo_searcher.proposers import EndpointUnreachable, ProposerRefused, ReplyOutcome

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Write a kernel. " * 20}]
QUICK = RetrySettings(attempts=4, first_delay_s=0.01, longest_delay_s=0.02, patience_s=5.0)
MODULE = "Idea: more\n\n```python\nclass ModelNew:\n    pass\n```\n"


def client(server: OpenAIServer, **fields: Any) -> ChatClient:
    values: dict[str, Any] = {
        "model": "o-test",
        "base_url": server.base_url,
        "api": "responses",
        "retry": QUICK,
        "max_reply_tokens": 2000,
    }
    return ChatClient(EndpointSettings(**(values | fields)))


async def complete(server: OpenAIServer, **fields: Any) -> Completion:
    chat = client(server, **fields)
    try:
        return await chat.complete(MESSAGES)
    finally:
        await chat.aclose()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_reply_with_its_usage_reasoning_included(stream: bool) -> None:
    reply = Reply(
        content=MODULE,
        reasoning="Hm.",
        prompt_tokens=900,
        completion_tokens=700,
        reasoning_tokens=640,
        cached_tokens=512,
    )
    with serve(reply) as server:
        completion = await complete(
            server, stream=stream, reasoning_effort="high", reasoning=True, temperature=0.5, system_role="developer"
        )
    assert (completion.text, completion.cut, completion.refused, completion.attempts) == (MODULE, False, False, 1)
    usage = completion.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (900, 700)
    assert (usage.reasoning_tokens, usage.cached_tokens, usage.estimated) == (640, 512, False)
    assert server.charged_tokens == usage.total_tokens
    asked = server.asked[0]
    assert asked.path == "/v1/responses"
    assert asked.body["input"] == [{**MESSAGES[0], "role": "developer"}, MESSAGES[1]]
    assert asked.body["max_output_tokens"] == 2000 and asked.body["reasoning"] == {"effort": "high"}
    assert asked.body["store"] is False
    assert not {"temperature", "messages", "max_completion_tokens"} & set(asked.body)


async def test_a_plain_model_gets_its_temperature_and_extra_fields() -> None:
    with serve(Reply()) as server:
        await complete(server, temperature=0.5, extra_body={"service_tier": "flex"})
    body = server.asked[0].body
    assert (body["temperature"], body["service_tier"]) == (0.5, "flex") and "reasoning" not in body


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (Reply(content=MODULE), ReplyOutcome.OK),
        (Reply(content=MODULE[:-20], finish_reason="length"), ReplyOutcome.TRUNCATED),
        # All of it went into reasoning.
        (Reply(content=None, reasoning="Hm.", finish_reason="length"), ReplyOutcome.TRUNCATED),
        (Reply(content=None, refusal="I will not."), ReplyOutcome.REFUSED),
        (Reply(content="half", finish_reason="content_filter"), ReplyOutcome.REFUSED),
        (Reply(content=None), ReplyOutcome.EMPTY),
        (Reply(content="No code today."), ReplyOutcome.PROSE),
    ],
)
async def test_every_kind_of_reply_has_its_outcome_and_its_price(
    reply: Reply, outcome: ReplyOutcome, stream: bool
) -> None:
    with serve(reply) as server:
        completion = await complete(server, stream=stream)
    proposal = read_proposal(None, completion)
    assert proposal.outcome is outcome
    assert proposal.usage.total_tokens == 150 == server.charged_tokens
    assert len(server.asked) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_missing_usage_is_estimated_and_marked(stream: bool) -> None:
    with serve(Reply(content="x" * 340, report_usage=False)) as server:
        completion = await complete(server, stream=stream)
    assert completion.usage.estimated and completion.usage.completion_tokens == 100


async def test_a_stream_that_breaks_leaves_what_had_arrived() -> None:
    with serve(Reply(content=MODULE * 3, drop_after_characters=64)) as server:
        completion = await complete(server, stream=True)
    assert completion.cut and completion.text and (MODULE * 3).startswith(completion.text)
    assert completion.usage.estimated and len(server.asked) == 1


@pytest.mark.parametrize(
    "failure",
    [
        Reply(status=500),
        Reply(status=429, headers={"Retry-After": "0"}),
        Reply(drop=True),
        Reply(raw_body="<html>gateway</html>"),
        Reply(raw_body="[]"),
        Reply(raw_body='{"object": "response", "status": "completed"}'),
        Reply(raw_body='{"status": "queued", "output": []}'),
        Reply(raw_body='{"status": "failed", "output": [], "error": {"code": "server_error", "message": "oops"}}'),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_passing_faults_are_retried(failure: Reply, stream: bool) -> None:
    with serve(failure, Reply(content="here")) as server:
        completion = await complete(server, stream=stream, max_reply_tokens=20_000)
    assert (completion.text, completion.attempts) == ("here", 2)
    assert completion.usage.estimated == (completion.lost_replies > 0)


async def test_a_failure_that_was_paid_is_charged() -> None:
    failed = {
        "status": "failed",
        "output": [],
        "error": {"code": "server_error", "message": "oops"},
        "usage": {"input_tokens": 90, "output_tokens": 30, "total_tokens": 120},
    }
    with serve(Reply(raw_body=json.dumps(failed)), Reply(content="here")) as server:
        completion = await complete(server, max_reply_tokens=20_000)
    assert completion.lost_replies == 1 and completion.usage.total_tokens == 120 + 150


async def test_no_credit_pauses_and_a_wrong_key_is_not_shown() -> None:
    failed = '{"status": "failed", "output": [], "error": {"code": "insufficient_quota", "message": "pay first"}}'
    with serve(Reply(raw_body=failed)) as server:
        with pytest.raises(EndpointUnreachable, match="no credit left"):
            await complete(server)
        assert len(server.asked) == 1
    with (
        serve(Reply(), api_key="sk-right") as server,
        pytest.raises(ProposerRefused, match="check the API key") as caught,
    ):
        await complete(server, api_key=Secret("sk-wrong-0123456789"))
    assert "sk-wrong" not in str(caught.value)


KEYS = (
    *(
        "output",
        "type",
        "content",
        "text",
        "message",
        "status",
        "error",
        "usage",
        "summary",
        "refusal",
        "reason",
        "response",
    ),
    *("delta", "input_tokens", "output_tokens", "code", "choices", "finish_reason", "prompt_tokens", "total_tokens"),
)
VALUES = (
    st.none() | st.booleans() | st.integers() | st.sampled_from(["output_text", "message", "stop", "incomplete", "x"])
)
JSON = st.recursive(
    VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=20,
)
PAYLOADS = st.dictionaries(
    st.sampled_from(["output", "status", "error", "usage", "incomplete_details", "model", "choices"]), JSON
)
EVENTS = st.sampled_from(["response.completed", "response.output_text.delta", "response.failed", "error", "what"])
CHUNKS = st.fixed_dictionaries(
    {"type": EVENTS | JSON},
    optional=dict.fromkeys(("response", "delta", "code", "message", "choices", "usage"), JSON),
)


@pytest.mark.parametrize("api", ["chat", "responses"])
@settings(max_examples=100, deadline=None)
@given(payload=PAYLOADS, chunks=st.lists(CHUNKS, max_size=4))
def test_no_shape_of_an_answer_is_an_accident(api: str, payload: dict[str, Any], chunks: list[dict[str, Any]]) -> None:
    dialect = dialect_of(api)
    collector = dialect.collector()
    for chunk in chunks:
        collector.add(chunk)
    for read in (lambda: dialect.read(payload), collector.reply, lambda: collector.reply(broken=True)):
        try:
            reply = read()
        except (NoReply, Failed):
            continue
        assert isinstance(reply.text, str) and isinstance(reply.refusal, str)
        assert usage_of(reply.usage, MESSAGES, reply.text).total_tokens > 0


async def test_a_request_by_other_means_is_the_same_and_its_answer_is_read() -> None:
    with serve(Reply(content=MODULE, reasoning_tokens=20)) as server:
        completion = await complete(server)
        chat = client(server)
        assert chat.body(MESSAGES) == server.asked[0].body
    body = {
        "status": "completed",
        "output": [{"type": "message", "content": [{"type": "output_text", "text": MODULE}]}],
        "usage": {"input_tokens": 100, "output_tokens": 50, "output_tokens_details": {"reasoning_tokens": 20}},
        "model": "o-test",
    }
    assert chat.read(json.dumps(body), MESSAGES) == completion
    with pytest.raises(ValueError, match="holds no output"):
        chat.read("{}", MESSAGES)
