"""Chat completions, as OpenAI and most servers speak them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernelevo_searcher.llm.dialect import NoReply, RawReply, failure_in
from kernelevo_searcher.llm.wire import Message, content_text

if TYPE_CHECKING:
    import openai

    from kernelevo_searcher.llm.endpoint import EndpointSettings

__all__ = ["ChatDialect"]

# Tuples, not sets: what a server sends may not be hashable.
_CUT = ("length", "max_tokens", "MAX_TOKENS")
_DECLINED = ("content_filter", "refusal", "SAFETY")


class ChatDialect:
    """Requests to `/chat/completions`."""

    def arguments(self, settings: EndpointSettings, messages: Sequence[Message], allowed: int) -> dict[str, Any]:
        role = settings.system_role
        arguments: dict[str, Any] = {
            "model": settings.model,
            "messages": [{**message, "role": role} if message["role"] == "system" else message for message in messages],
            settings.reply_limit_parameter: allowed,
        }
        if settings.reasoning:
            if settings.reasoning_effort is not None:
                arguments["reasoning_effort"] = settings.reasoning_effort
        elif settings.temperature is not None:
            arguments["temperature"] = settings.temperature
        if settings.extra_body:
            arguments["extra_body"] = dict(settings.extra_body)
        return arguments

    async def whole(self, sdk: openai.AsyncOpenAI, arguments: Mapping[str, Any]) -> str:
        raw = await sdk.chat.completions.with_raw_response.create(**arguments)
        body: str = raw.http_response.text
        return body

    async def stream(self, sdk: openai.AsyncOpenAI, arguments: Mapping[str, Any], *, usage: bool) -> Any:
        asked: dict[str, Any] = {**arguments, "stream": True}
        if usage:
            asked["stream_options"] = {"include_usage": True}
        return await sdk.chat.completions.create(**asked)

    def collector(self) -> _Collector:
        return _Collector()

    def read(self, payload: Mapping[str, object]) -> RawReply:
        failure = failure_in(payload)
        if failure is not None:
            raise failure
        choice = _first_choice(payload.get("choices"))
        message = choice.get("message") if choice is not None else None
        if choice is None or not isinstance(message, Mapping):
            raise NoReply("the reply holds no choice")
        return _reply(
            text=content_text(message.get("content")),
            hidden=content_text(message.get("reasoning_content") or message.get("reasoning")),
            refusal=content_text(message.get("refusal")),
            finish=choice.get("finish_reason"),
            usage=payload.get("usage"),
            model=payload.get("model"),
        )


class _Collector:
    def __init__(self) -> None:
        self.text = ""
        self._reasoning = ""
        self._refusal = ""
        self._finish: str | None = None
        self._usage: object = None
        self._model: object = None
        self._saw_choice = False

    def add(self, chunk: Mapping[str, object]) -> None:
        self._usage = chunk.get("usage") or self._usage
        self._model = chunk.get("model") or self._model
        choice = _first_choice(chunk.get("choices"))
        if choice is None:
            return
        self._saw_choice = True
        finish = choice.get("finish_reason")
        if isinstance(finish, str):
            self._finish = finish
        delta = choice.get("delta")
        if isinstance(delta, Mapping):
            self.text += content_text(delta.get("content"))
            self._reasoning += content_text(delta.get("reasoning_content") or delta.get("reasoning"))
            self._refusal += content_text(delta.get("refusal"))

    def reply(self, *, broken: bool = False) -> RawReply:
        if not self._saw_choice:
            raise NoReply("the reply holds no choice")
        return _reply(
            text=self.text,
            hidden=self._reasoning,
            refusal=self._refusal,
            # A stream that ends without saying why was cut.
            finish="length" if broken else self._finish or "length",
            usage=self._usage,
            model=self._model,
        )


def _reply(*, text: str, hidden: str, refusal: str, finish: object, usage: object, model: object) -> RawReply:
    return RawReply(
        text=text,
        hidden=hidden,
        refusal=refusal,
        cut=finish in _CUT,
        declined=finish in _DECLINED,
        usage=usage,
        model=model,
    )


def _first_choice(choices: object) -> Mapping[str, object] | None:
    if isinstance(choices, list) and choices and isinstance(choices[0], Mapping):
        return choices[0]
    return None
