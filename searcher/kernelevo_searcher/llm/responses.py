"""The responses protocol of OpenAI: what its reasoning models speak best.

A reply is a list of items, of which only messages are the reply; reasoning is one of the others. `store` is always false: nobody
needs the provider to keep prompts with somebody's source in them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernelevo_searcher.llm.dialect import Failed, NoReply, RawReply, failure_in
from kernelevo_searcher.llm.wire import Message, content_text

if TYPE_CHECKING:
    import openai

    from kernelevo_searcher.llm.endpoint import EndpointSettings

__all__ = ["ResponsesDialect"]

# Tuples, not sets: what a server sends may not be hashable.
_ENDED = ("response.completed", "response.incomplete", "response.failed")
_REASONING = ("response.reasoning_summary_text.delta", "response.reasoning_text.delta")


class ResponsesDialect:
    """Requests to `/responses`."""

    def arguments(self, settings: EndpointSettings, messages: Sequence[Message], allowed: int) -> dict[str, Any]:
        role = settings.system_role
        arguments: dict[str, Any] = {
            "model": settings.model,
            "input": [{**message, "role": role} if message["role"] == "system" else message for message in messages],
            "max_output_tokens": allowed,
            "store": False,
        }
        if settings.reasoning:
            if settings.reasoning_effort is not None:
                arguments["reasoning"] = {"effort": settings.reasoning_effort}
        elif settings.temperature is not None:
            arguments["temperature"] = settings.temperature
        if settings.extra_body:
            arguments["extra_body"] = dict(settings.extra_body)
        return arguments

    async def whole(self, sdk: openai.AsyncOpenAI, arguments: Mapping[str, Any]) -> str:
        raw = await sdk.responses.with_raw_response.create(**arguments)
        body: str = raw.http_response.text
        return body

    async def stream(self, sdk: openai.AsyncOpenAI, arguments: Mapping[str, Any], *, usage: bool) -> Any:
        # The last event has the usage, asked for or not.
        return await sdk.responses.create(**arguments, stream=True)

    def collector(self) -> _Collector:
        return _Collector()

    def read(self, payload: Mapping[str, object]) -> RawReply:
        failure = failure_in(payload)
        if failure is not None:
            raise failure
        output, status = payload.get("output"), payload.get("status")
        if not isinstance(output, list):
            raise NoReply("the reply holds no output")
        if status in ("failed", "cancelled"):
            raise Failed(f"the response is {status}", usage=payload.get("usage"))
        if status in ("in_progress", "queued"):
            raise NoReply(f"the response is {status}, which was not asked for")
        incomplete = payload.get("incomplete_details")
        reason = incomplete.get("reason") if isinstance(incomplete, Mapping) else None
        filtered = reason == "content_filter"
        return RawReply(
            text="".join(_parts(output, "message", "content", "output_text", "text")),
            hidden="".join(_parts(output, "reasoning", "summary", "summary_text", "text")),
            refusal="".join(_parts(output, "message", "content", "refusal", "refusal")),
            cut=status == "incomplete" and not filtered,
            declined=filtered,
            usage=payload.get("usage"),
            model=payload.get("model"),
        )


def _parts(output: list[object], item_type: str, field: str, part_type: str, key: str) -> Iterator[str]:
    """The texts of one kind of part in one kind of item."""
    for item in output:
        if not isinstance(item, Mapping) or item.get("type") != item_type:
            continue
        parts = item.get(field)
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, Mapping) and part.get("type") == part_type:
                yield content_text(part.get(key))


class _Collector:
    """Text as it comes; the last event repeats all of it, with the usage."""

    def __init__(self) -> None:
        self.text = ""
        self._hidden = ""
        self._refusal = ""
        self._ended: Mapping[str, object] | None = None
        self._failure: Failed | None = None
        self._begun = False

    def add(self, chunk: Mapping[str, object]) -> None:
        kind, response = chunk.get("type"), chunk.get("response")
        self._begun = True
        if kind == "error":
            code = str(chunk.get("code"))
            self._failure = Failed(str(chunk.get("message", "")), code=code, kind=code)
        elif kind in _ENDED and isinstance(response, Mapping):
            self._ended = response
        elif kind == "response.output_text.delta":
            self.text += content_text(chunk.get("delta"))
        elif kind == "response.refusal.delta":
            self._refusal += content_text(chunk.get("delta"))
        elif kind in _REASONING:
            self._hidden += content_text(chunk.get("delta"))

    def reply(self, *, broken: bool = False) -> RawReply:
        if self._ended is not None:
            reply = ResponsesDialect().read({"output": [], **self._ended})
            if reply.text or reply.refusal:
                return reply
            # Some servers end with a response without its output.
            return RawReply(
                text=self.text,
                hidden=self._hidden,
                refusal=self._refusal,
                cut=reply.cut,
                declined=reply.declined,
                usage=reply.usage,
                model=reply.model,
            )
        if self._failure is not None and not self.text:
            raise self._failure
        if not self._begun:
            raise NoReply("the reply holds no event")
        return RawReply(text=self.text, hidden=self._hidden, refusal=self._refusal, cut=True)
