"""The chat client against a real HTTP server on loopback."""

from __future__ import annotations

import asyncio
import copy
import email.utils
import logging
import pickle
import time
import traceback

import pytest
from tests.searcher.openai_server import OpenAIServer, Reply, serve

from kernelevo_searcher.llm.client import ChatClient, Completion
from kernelevo_searcher.llm.endpoint import EndpointSettings, RetrySettings
from kernelevo_searcher.llm.secret import Secret
from kernelevo_searcher.llm.tokens import estimate_tokens
from kernelevo_searcher.llm.wire import retry_after_s
from kernelevo_searcher.proposers import EndpointUnreachable, ProposerRefused

KEY = "sk-very-secret-0123456789abcdef"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Write a kernel. " * 20}]
QUICK = RetrySettings(attempts=4, first_delay_s=0.01, longest_delay_s=0.02, patience_s=5.0)


def client(server: OpenAIServer, **settings: object) -> ChatClient:
    fields: dict[str, object] = {
        "model": "test-model",
        "base_url": server.base_url,
        "retry": QUICK,
        "max_reply_tokens": 2000,
    }
    return ChatClient(EndpointSettings(**(fields | settings)))  # type: ignore[arg-type]


async def complete(server: OpenAIServer, **settings: object) -> Completion:
    chat = client(server, **settings)
    try:
        return await chat.complete(MESSAGES)
    finally:
        await chat.aclose()


async def test_a_reply_with_its_usage() -> None:
    reply = Reply(content="hello", prompt_tokens=11, completion_tokens=7, reasoning_tokens=3, cached_tokens=4)
    with serve(reply) as server:
        completion = await complete(server)
    assert (completion.text, completion.cut, completion.refused, completion.attempts) == ("hello", False, False, 1)
    usage = completion.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.reasoning_tokens, usage.cached_tokens) == (11, 7, 3, 4)
    assert not usage.estimated
    body = server.asked[0].body
    assert body["max_completion_tokens"] == 2000
    assert body["messages"] == MESSAGES
    assert "temperature" not in body and "stream" not in body


async def test_a_reasoning_model_gets_no_sampling_parameters() -> None:
    with serve(Reply()) as server:
        await complete(server, reasoning=True, reasoning_effort="high", temperature=0.7, system_role="developer")
    body = server.asked[0].body
    assert body["reasoning_effort"] == "high"
    assert "temperature" not in body
    assert body["messages"][0]["role"] == "developer"


async def test_an_older_server_gets_the_older_names_and_extra_fields() -> None:
    with serve(Reply()) as server:
        await complete(server, reply_limit_parameter="max_tokens", temperature=0.7, extra_body={"top_k": 20})
    body = server.asked[0].body
    assert (body["max_tokens"], body["temperature"], body["top_k"]) == (2000, 0.7, 20)
    assert "max_completion_tokens" not in body


@pytest.mark.parametrize("stream", [False, True])
async def test_missing_usage_is_estimated_and_marked(stream: bool) -> None:
    with serve(Reply(content="x" * 340, report_usage=False)) as server:
        completion = await complete(server, stream=stream)
    assert completion.usage.estimated
    assert completion.usage.completion_tokens == 100
    assert completion.usage.prompt_tokens == sum(estimate_tokens(message["content"]) for message in MESSAGES)


async def test_reasoning_counted_only_in_the_total_is_charged() -> None:
    body = (
        '{"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}],'
        ' "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 115}}'
    )
    with serve(Reply(raw_body=body)) as server:
        completion = await complete(server)
    assert completion.usage.total_tokens == 115


async def test_a_streamed_reply() -> None:
    with serve(Reply(content="a long reply " * 10, prompt_tokens=9, completion_tokens=8)) as server:
        completion = await complete(server, stream=True)
    assert completion.text == "a long reply " * 10
    assert (completion.usage.prompt_tokens, completion.usage.estimated) == (9, False)


async def test_a_stream_that_breaks_leaves_what_had_arrived() -> None:
    with serve(Reply(content="a long reply " * 10, drop_after_characters=64)) as server:
        completion = await complete(server, stream=True)
    assert completion.cut
    assert completion.text and ("a long reply " * 10).startswith(completion.text)
    assert completion.usage.estimated
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("reply", "cut", "refused", "text"),
    [
        (Reply(content="half", finish_reason="length"), True, False, "half"),
        (Reply(content=None, finish_reason="length"), True, False, ""),
        (Reply(content="", finish_reason="content_filter"), False, True, ""),
        (Reply(content=None, refusal="I will not."), False, True, "I will not."),
        (Reply(content=[{"type": "text", "text": "in "}, {"type": "text", "text": "parts"}]), False, False, "in parts"),
        (Reply(content=None), False, False, ""),
    ],
)
async def test_replies_of_every_kind_come_back(reply: Reply, cut: bool, refused: bool, text: str) -> None:
    with serve(reply) as server:
        completion = await complete(server)
    assert (completion.cut, completion.refused, completion.text) == (cut, refused, text)
    assert completion.usage.total_tokens == 150


@pytest.mark.parametrize(
    "failure",
    [
        Reply(status=500),
        Reply(status=503),
        Reply(status=408),
        Reply(status=529),
        Reply(status=429),
        Reply(drop=True),
        Reply(raw_body="<html>gateway</html>"),
        Reply(raw_body='{"choices": []}'),
        Reply(raw_body="[]"),
        Reply(raw_body='{"error": {"message": "upstream is down", "code": 502}}'),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_passing_faults_are_retried(failure: Reply, stream: bool) -> None:
    with serve(failure, Reply(content="here")) as server:
        completion = await complete(server, stream=stream, max_reply_tokens=20_000)
    assert (completion.text, completion.attempts) == ("here", 2)
    assert completion.usage.estimated == (completion.lost_replies > 0)


async def test_retry_after_is_obeyed_by_every_call() -> None:
    busy = Reply(status=429, headers={"Retry-After": "1"})
    with serve(busy, Reply(), Reply()) as server:
        chat = client(server)
        start = time.monotonic()
        first = asyncio.create_task(chat.complete(MESSAGES))
        await asyncio.sleep(0.5)
        second = asyncio.create_task(chat.complete(MESSAGES))
        await asyncio.gather(first, second)
        await chat.aclose()
    assert time.monotonic() - start >= 1.0
    assert all(asked.time - server.asked[0].time >= 0.95 for asked in server.asked[1:])
    assert len(server.asked) == 3


async def test_a_longer_retry_after_than_our_patience_pauses_the_run() -> None:
    with serve(Reply(status=429, headers={"Retry-After": "3600"})) as server:
        chat = client(server)
        for _ in range(2):
            with pytest.raises(EndpointUnreachable) as caught:
                await chat.complete(MESSAGES)
            assert caught.value.retry_after_s == pytest.approx(3600, rel=0.2)
            assert caught.value.usage is None
        await chat.aclose()
    assert len(server.asked) == 1, "the second call does not even ask"


async def test_faults_that_stay_end_in_unreachable() -> None:
    with (
        serve(Reply(status=500), repeat_last=True) as server,
        pytest.raises(EndpointUnreachable, match="4 attempts: status 500") as caught,
    ):
        await complete(server)
    assert len(server.asked) == 4
    assert caught.value.usage is None, "an error reply costs nothing"


async def test_nobody_listens() -> None:
    with serve() as server:
        pass
    with pytest.raises(EndpointUnreachable, match="connection failed") as caught:
        await complete(server)
    assert caught.value.usage is None


async def test_no_credit_pauses_at_once() -> None:
    with (
        serve(Reply(status=429, error_code="insufficient_quota"), repeat_last=True) as server,
        pytest.raises(EndpointUnreachable, match="no credit"),
    ):
        await complete(server)
    assert len(server.asked) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_silent_endpoint_is_given_up_and_charged_within_the_reservation(stream: bool) -> None:
    with serve(Reply(delay_s=1.0), repeat_last=True) as server:
        chat = client(server, timeout_s=0.1, stream=stream)
        with pytest.raises(EndpointUnreachable) as caught:
            await chat.complete(MESSAGES)
        await chat.aclose()
    usage = caught.value.usage
    assert usage is not None and usage.estimated
    assert 0 < usage.total_tokens <= chat.reserve(MESSAGES)


async def test_a_reply_that_takes_too_long_is_given_up() -> None:
    with (
        serve(Reply(delay_s=0.5), repeat_last=True) as server,
        pytest.raises(EndpointUnreachable, match="no answer in time"),
    ):
        await complete(server, longest_reply_s=0.1)


async def test_lost_replies_shrink_the_next_so_that_the_reservation_holds() -> None:
    with serve(Reply(drop=True), repeat_last=True) as server:
        chat = client(server, retry=RetrySettings(attempts=50, first_delay_s=0.0, longest_delay_s=0.0))
        with pytest.raises(EndpointUnreachable) as caught:
            await chat.complete(MESSAGES)
        reserved = chat.reserve(MESSAGES)
        await chat.aclose()
    limits = [asked.body["max_completion_tokens"] for asked in server.asked]
    assert limits == sorted(limits, reverse=True) and limits[-1] >= 1000
    assert 1 < len(limits) < 50
    assert caught.value.usage is not None
    assert caught.value.usage.total_tokens <= reserved


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
async def test_what_will_not_work_is_not_tried_again(status: int) -> None:
    with (
        serve(Reply(status=status, error_message="no such model"), repeat_last=True) as server,
        pytest.raises(ProposerRefused, match="no such model"),
    ):
        await complete(server)
    assert len(server.asked) == 1


async def test_a_cancelled_call_ends() -> None:
    with serve(Reply(delay_s=5.0)) as server:
        chat = client(server)
        task = asyncio.create_task(chat.complete(MESSAGES))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await chat.aclose()


async def test_the_key_is_sent_and_shown_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with serve(Reply(), Reply(status=500, error_message=f"trace of {KEY}"), Reply(), api_key=KEY) as server:
        settings = {"api_key": Secret(KEY)}
        chat = client(server, **settings)
        await chat.complete(MESSAGES)
        await chat.complete(MESSAGES)
        assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"
        shown = [repr(chat), repr(chat.settings), str(chat.settings), caplog.text]
        await chat.aclose()
        server.api_key = "another"
        with pytest.raises(ProposerRefused) as caught:
            await complete(server, **settings)
    error = caught.value
    printed = "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())
    shown += [str(error), repr(error), printed, caplog.text]
    assert "Incorrect API key provided: ***" in str(error)
    assert not any(KEY in text for text in shown)


async def test_no_key_of_the_environment_goes_to_an_endpoint_that_was_given_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with serve(Reply()) as server:
        await complete(server)
    assert KEY not in str(server.asked[0].headers)


def test_a_secret_is_not_written_down() -> None:
    secret = Secret(KEY)
    assert KEY not in f"{secret} {secret!r} {EndpointSettings(model='m', api_key=secret)}"
    for write in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="not written down"):
            write(secret)


@pytest.mark.parametrize("url", ["https://user:pw@host/v1", "https://host/v1?key=abc", "host/v1", "ftp://host/v1"])
def test_urls_that_are_refused(url: str) -> None:
    with pytest.raises(ValueError) as caught:
        EndpointSettings(model="m", base_url=url)
    assert "pw" not in str(caught.value) and "abc" not in str(caught.value)


def test_retry_after_is_read_in_every_form() -> None:
    now = 1_800_000_000.0
    date = email.utils.formatdate(now + 30, usegmt=True)
    assert retry_after_s({"retry-after": "2.5"}) == 2.5
    assert retry_after_s({"retry-after-ms": "1500", "retry-after": "9"}) == 1.5
    assert retry_after_s({"retry-after": date}, now=lambda: now) == 30
    assert retry_after_s({"retry-after": email.utils.formatdate(now - 30, usegmt=True)}, now=lambda: now) == 0
    for nonsense in ("soon", "nan", "inf", ""):
        assert retry_after_s({"retry-after": nonsense}) is None
    assert retry_after_s({}) is None


async def test_what_was_lost_before_a_refusal_is_charged() -> None:
    with serve(Reply(drop=True), Reply(status=404)) as server, pytest.raises(ProposerRefused) as caught:
        await complete(server, max_reply_tokens=20_000)
    assert caught.value.usage is not None and caught.value.usage.prompt_tokens > 0
