"""What chat endpoints send, and what it means: streams put together, contents, usage, and how long to wait.

Nothing here is sent or retried, and nothing is trusted to have the shape that the protocol promises.
"""

from __future__ import annotations

import email.utils
import math
import time
from collections.abc import Callable, Mapping, Sequence

from kernelevo_searcher.llm.tokens import estimate_tokens, message_text
from kernelevo_searcher.proposers import Usage

__all__ = ["Message", "StreamedReply", "content_text", "first_choice", "prompt_estimate", "retry_after_s", "usage_of"]

Message = dict[str, str]


class StreamedReply:
    """A reply put together from its chunks."""

    def __init__(self) -> None:
        self.text = ""
        self.reasoning = ""
        self.refusal = ""
        self.finish: str | None = None
        self.usage: object = None
        self.model: object = None
        self.saw_choice = False

    def add(self, chunk: Mapping[str, object]) -> None:
        self.usage = chunk.get("usage") or self.usage
        self.model = chunk.get("model") or self.model
        choice = first_choice(chunk.get("choices"))
        if choice is None:
            return
        self.saw_choice = True
        finish = choice.get("finish_reason")
        if isinstance(finish, str):
            self.finish = finish
        delta = choice.get("delta")
        if isinstance(delta, Mapping):
            self.text += content_text(delta.get("content"))
            self.reasoning += content_text(delta.get("reasoning_content") or delta.get("reasoning"))
            self.refusal += content_text(delta.get("refusal"))


def first_choice(choices: object) -> Mapping[str, object] | None:
    if isinstance(choices, list) and choices and isinstance(choices[0], Mapping):
        return choices[0]
    return None


def content_text(content: object) -> str:
    """A message's content as text: a string, or the list of parts that some servers send."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = (part.get("text") if isinstance(part, Mapping) else part for part in content)
        return "".join(part for part in parts if isinstance(part, str))
    return ""


def usage_of(usage: object, messages: Sequence[Message], reply: str) -> Usage:
    """What the provider says was used; our estimate where it says nothing."""
    if isinstance(usage, Mapping):
        prompt, completion, total = (_count(usage.get(f"{part}_tokens")) for part in ("prompt", "completion", "total"))
        if prompt or completion:
            details = usage.get("completion_tokens_details")
            reasoning = _count(details.get("reasoning_tokens")) if isinstance(details, Mapping) else 0
            cached_details = usage.get("prompt_tokens_details")
            cached = _count(cached_details.get("cached_tokens")) if isinstance(cached_details, Mapping) else 0
            # Some providers leave reasoning out of the completion and count it in the total only.
            completion = max(completion, total - prompt)
            return Usage(
                prompt_tokens=prompt,
                completion_tokens=completion,
                reasoning_tokens=min(reasoning, completion),
                cached_tokens=min(cached or _count(usage.get("prompt_cache_hit_tokens")), prompt),
            )
    return Usage(prompt_tokens=prompt_estimate(messages), completion_tokens=estimate_tokens(reply), estimated=True)


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def prompt_estimate(messages: Sequence[Message]) -> int:
    return sum(estimate_tokens(message_text(message)) for message in messages)


def retry_after_s(headers: Mapping[str, str], now: Callable[[], float] = time.time) -> float | None:
    """Seconds that the endpoint asks for, by `retry-after-ms` or `Retry-After` (seconds or a date); absent if unreadable."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            seconds = float(value) * scale
        except ValueError:
            try:
                seconds = email.utils.parsedate_to_datetime(value).timestamp() - now()
            except ValueError:
                continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    return None
