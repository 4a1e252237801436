"""Replies from one OpenAI-compatible endpoint, by chat completions or by the responses protocol.

The one place that talks to a model and the one place that retries: the SDK underneath is told not to. A call ends with a
`Completion`, which was paid for, or with one of the proposer errors. It never costs more than its reservation: a reply
that was lost on the way may have been billed, so it is charged by an upper bound, and the next attempt may only spend
what is left. No message, log line or representation made here holds the API key.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernelevo_searcher.llm.dialect import Failed, NoReply, RawReply, dialect_of
from kernelevo_searcher.llm.tokens import bound_tokens
from kernelevo_searcher.llm.wire import Message, prompt_estimate, reported_usage, retry_after_s, usage_of
from kernelevo_searcher.proposers import EndpointUnreachable, ProposerError, ProposerRefused, Usage

if TYPE_CHECKING:
    import openai

    from kernelevo_searcher.llm.endpoint import EndpointSettings

__all__ = ["ChatClient", "Completion", "Message", "Spend"]

_log = logging.getLogger(__name__)

_LONGEST_ERROR = 300
"""Characters of an endpoint's error message that are passed on."""
_TOKENS_PER_SECOND = 400
"""No hosted model writes faster: bounds what a reply that was lost after some seconds can have cost."""
_RETRIED_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 507, 520, 521, 522, 523, 524, 529})
_NEVER_SENT = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError", "UnsupportedProtocol"})
"""Names of the transport's errors after which the endpoint cannot have seen the request."""
_OUT_OF_CREDIT = frozenset({"insufficient_quota", "billing_hard_limit_reached", "insufficient_funds"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One reply as it came."""

    text: str
    cut: bool = False
    """It ran into its limit, or its connection broke."""
    refused: bool = False
    """The model declined, or a filter stepped in."""
    usage: Usage
    """Everything that this call is charged, lost replies included."""
    model: str = ""
    """As the endpoint names it."""
    attempts: int = 1
    lost_replies: int = 0
    """Attempts that were sent and whose reply never arrived."""


@dataclass(slots=True)
class Spend:
    """What one call has spent on replies that were lost, and how often it tried."""

    limit: int
    """The call's reservation."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    attempts: int = 0
    lost_replies: int = 0

    @property
    def lost_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def charge(self, usage: Usage) -> None:
        """Count a reply that never arrived."""
        self.lost_replies += 1
        self.prompt_tokens += usage.prompt_tokens
        self.completion_tokens += usage.completion_tokens

    def usage(self) -> Usage | None:
        """Of the lost replies alone; absent where none was lost."""
        if not self.lost_replies:
            return None
        return Usage(prompt_tokens=self.prompt_tokens, completion_tokens=self.completion_tokens, estimated=True)


class _Retriable(Exception):
    """An attempt that brought nothing and may be repeated."""

    def __init__(
        self, message: str, *, retry_after_s: float | None = None, lost: bool = False, usage: Usage | None = None
    ) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.lost = lost
        """The request was sent, and nobody can say what became of it."""
        self.usage = usage
        """What the endpoint says that it cost all the same."""


class ChatClient:
    """Has chats completed at one endpoint, by the protocol of its settings; one instance is shared by all calls to it.

    Cancelling `complete` closes its connection. When the endpoint asks for a pause, every call waits for it, not only the
    one that was told.
    """

    def __init__(self, settings: EndpointSettings) -> None:
        self._settings = settings
        self._dialect = dialect_of(settings.api)
        self._sdk: openai.AsyncOpenAI | None = None
        self._quiet_until = -math.inf

    @property
    def settings(self) -> EndpointSettings:
        return self._settings

    def reserve(self, messages: Sequence[Message]) -> int:
        """Most tokens that a completion of these messages can cost."""
        return bound_tokens(messages) + self._settings.max_reply_tokens

    async def complete(self, messages: Sequence[Message]) -> Completion:
        """The endpoint's reply to `messages`.

        Raises:
            EndpointUnreachable: no reply within the bounds of `RetrySettings`, or no credit; later may be better.
            ProposerRefused: the endpoint will not serve this call as it is set up.
        """
        retry = self._settings.retry
        spend = Spend(limit=self.reserve(messages))
        prompt_bound = bound_tokens(messages)
        waited = 0.0
        while True:
            while (pause := self._quiet_until - time.monotonic()) > 0:
                if waited + pause > retry.patience_s:
                    raise EndpointUnreachable(
                        f"{self._where()} asks to be left alone for {pause:.0f} s",
                        retry_after_s=pause,
                        usage=spend.usage(),
                    )
                waited += pause
                await asyncio.sleep(pause)
            allowed = min(self._settings.max_reply_tokens, spend.limit - spend.lost_tokens - prompt_bound)
            spend.attempts += 1
            start = time.monotonic()
            try:
                return await self._attempt(messages, allowed, spend)
            except ProposerError as error:
                # The attempt itself cost nothing; replies that were lost before it did.
                error.usage = spend.usage()
                raise
            except _Retriable as failure:
                if failure.usage is not None:
                    spend.charge(failure.usage)
                elif failure.lost:
                    spend.charge(self._lost_usage(messages, allowed, time.monotonic() - start))
                delay = self._delay(spend.attempts, failure.retry_after_s)
                _log.warning("%s: %s (attempt %d of %d)", self._where(), failure, spend.attempts, retry.attempts)
                if failure.retry_after_s is not None:
                    self._quiet_until = max(self._quiet_until, time.monotonic() + delay)
                left = spend.limit - spend.lost_tokens - prompt_bound
                if (
                    spend.attempts >= retry.attempts
                    or waited + delay > retry.patience_s
                    # A reply cut to less than half of what was meant is money thrown after money.
                    or 2 * left < self._settings.max_reply_tokens
                ):
                    raise EndpointUnreachable(
                        f"{self._where()} gave no reply in {spend.attempts} attempts: {failure}",
                        retry_after_s=failure.retry_after_s,
                        usage=spend.usage(),
                    ) from None
                if failure.retry_after_s is None:
                    waited += delay
                    await asyncio.sleep(delay)

    def body(self, messages: Sequence[Message]) -> dict[str, Any]:
        """The request as it would be sent, without a stream: for those who send it by other means."""
        arguments = self._dialect.arguments(self._settings, messages, self._settings.max_reply_tokens)
        return {**arguments, **arguments.pop("extra_body", {})}

    def read(self, body: str, messages: Sequence[Message]) -> Completion:
        """What an endpoint answered to `messages`, sent by other means.

        Raises:
            ProposerError: the answer is an error, and nothing was paid.
            ValueError: the answer is no completion.
        """
        try:
            return self._read(body, messages, Spend(limit=self.reserve(messages), attempts=1))
        except _Retriable as failure:
            if failure.lost:
                raise ValueError(str(failure)) from None
            raise EndpointUnreachable(str(failure)) from None

    async def aclose(self) -> None:
        """Close the connections."""
        if self._sdk is not None:
            await self._sdk.close()
            self._sdk = None

    def __repr__(self) -> str:
        return f"ChatClient({self._where()})"

    def _where(self) -> str:
        return f"{self._settings.model} at {self._settings.base_url}"

    def _delay(self, attempts: int, retry_after_s: float | None) -> float:
        retry = self._settings.retry
        backoff = min(retry.longest_delay_s, retry.first_delay_s * 2.0 ** (attempts - 1))
        jittered = backoff * random.uniform(0.5, 1.0)  # noqa: S311 - spreads retries, keeps no secret
        if retry_after_s is None:
            return jittered
        # A little more than asked, so that those who were told the same do not come back at the same moment.
        return retry_after_s + min(jittered, 0.1 * retry_after_s)

    def _lost_usage(self, messages: Sequence[Message], allowed: int, elapsed_s: float) -> Usage:
        """An upper bound."""
        completion = min(allowed, math.ceil(elapsed_s * _TOKENS_PER_SECOND))
        return Usage(prompt_tokens=prompt_estimate(messages), completion_tokens=completion, estimated=True)

    async def _attempt(self, messages: Sequence[Message], allowed: int, spend: Spend) -> Completion:
        import openai

        if self._sdk is None:
            self._sdk = self._connect()
        # Errors of the SDK carry the request with its headers; they are read here and not chained, so that no traceback
        # printed with its variables shows the key.
        try:
            if self._settings.stream:
                return await self._attempt_stream(self._sdk, messages, allowed, spend)
            async with asyncio.timeout(self._settings.longest_reply_s):
                arguments = self._dialect.arguments(self._settings, messages, allowed)
                body = await self._dialect.whole(self._sdk, arguments)
        except TimeoutError:
            problem: Exception = _Retriable("no answer in time", lost=True)
        except openai.APIStatusError as error:
            problem = self._status_problem(
                error.status_code, _said(error), error.code, error.type, error.response.headers
            )
        except openai.APITimeoutError as error:
            problem = _Retriable("no answer in time", lost=not _never_sent(error))
        except openai.APIConnectionError as error:
            problem = _Retriable(f"connection failed ({_cause(error)})", lost=not _never_sent(error))
        except openai.APIError as error:
            problem = _Retriable(self._clean(error.message), lost=True)
        else:
            return self._read(body, messages, spend)
        raise problem

    def _connect(self) -> openai.AsyncOpenAI:
        import openai

        settings = self._settings
        return openai.AsyncOpenAI(
            # Without this the SDK would take a key from the environment and send it to whatever the URL names.
            api_key=settings.api_key.reveal() if settings.api_key else "none",
            base_url=settings.base_url,
            timeout=openai.Timeout(settings.timeout_s, connect=settings.connect_timeout_s),
            max_retries=0,
        )

    async def _attempt_stream(
        self, sdk: openai.AsyncOpenAI, messages: Sequence[Message], allowed: int, spend: Spend
    ) -> Completion:
        arguments = self._dialect.arguments(self._settings, messages, allowed)
        stream = await self._dialect.stream(sdk, arguments, usage=self._settings.stream_usage)
        collected, broken = self._dialect.collector(), False
        try:
            async with asyncio.timeout(self._settings.longest_reply_s), stream:
                async for chunk in stream:
                    collected.add(chunk.to_dict())
        except Exception:
            # Whatever broke it (the connection, a server's error in mid-stream, a line that is no JSON): what arrived was
            # paid for. Only a stream that broke before its first word is tried again.
            if not collected.text.strip():
                raise _Retriable("the reply broke off before its first word", lost=True) from None
            _log.warning("%s: the reply broke off after %d characters", self._where(), len(collected.text))
            broken = True
        try:
            reply = collected.reply(broken=broken)
        except (NoReply, Failed) as problem:
            raise self._problem_of(problem) from None
        return self._completion(reply, messages, spend)

    def _read(self, body: str, messages: Sequence[Message], spend: Spend) -> Completion:
        try:
            payload = json.loads(body)
        except (ValueError, RecursionError):
            raise _Retriable("the reply is not JSON", lost=True) from None
        if not isinstance(payload, Mapping):
            raise _Retriable("the reply is not a completion", lost=True)
        try:
            reply = self._dialect.read(payload)
        except (NoReply, Failed) as problem:
            raise self._problem_of(problem) from None
        return self._completion(reply, messages, spend)

    def _problem_of(self, problem: NoReply | Failed) -> Exception:
        if isinstance(problem, NoReply):
            return _Retriable(str(problem), lost=True)
        found = self._status_problem(problem.status, str(problem), problem.code, problem.kind, {})
        if isinstance(found, _Retriable):
            found.usage = reported_usage(problem.usage)
        return found

    def _completion(self, reply: RawReply, messages: Sequence[Message], spend: Spend) -> Completion:
        charged = usage_of(reply.usage, messages, reply.text + reply.hidden + reply.refusal)
        if spend.lost_replies:
            charged = dataclasses.replace(
                charged,
                prompt_tokens=charged.prompt_tokens + spend.prompt_tokens,
                completion_tokens=charged.completion_tokens + spend.completion_tokens,
                estimated=True,
            )
        return Completion(
            text=reply.text or reply.refusal,
            cut=reply.cut,
            refused=reply.declined or (bool(reply.refusal) and not reply.text.strip()),
            usage=charged,
            model=reply.model if isinstance(reply.model, str) and reply.model else self._settings.model,
            attempts=spend.attempts,
            lost_replies=spend.lost_replies,
        )

    def _status_problem(
        self, status: int, message: str, code: str | None, kind: str | None, headers: Mapping[str, str]
    ) -> Exception:
        said = f"status {status}: {self._clean(message)}"
        wait_s = retry_after_s(headers)
        if status == 402 or code in _OUT_OF_CREDIT or kind in _OUT_OF_CREDIT:
            return EndpointUnreachable(f"{self._where()} reports no credit left: {said}", retry_after_s=wait_s)
        if status in _RETRIED_STATUS or status > 599:
            return _Retriable(said, retry_after_s=wait_s)
        advice = _ADVICE.get(status, "check the model's name and settings")
        return ProposerRefused(f"{self._where()} refuses the call ({said}); {advice}")

    def _clean(self, text: str) -> str:
        text = " ".join(text.split())
        key = self._settings.api_key
        return (key.redact(text) if key is not None else text)[:_LONGEST_ERROR]


_ADVICE: Mapping[int, str] = {
    400: "check the model's settings (a reasoning model? the name of the reply limit? the context's size?)",
    401: "check the API key",
    403: "check what the API key may do",
    404: "check the base URL and the model's name",
}


def _never_sent(error: BaseException) -> bool:
    return type(error.__cause__).__name__ in _NEVER_SENT


def _cause(error: BaseException) -> str:
    return type(error.__cause__ or error).__name__


def _said(error: openai.APIStatusError) -> str:
    message = error.body.get("message") if isinstance(error.body, Mapping) else None
    return message if isinstance(message, str) else error.message
