"""What endpoints send, and what it means, whichever protocol they speak: contents, usage, and how long to wait.

Nothing here is sent or retried, and nothing is trusted to have the shape that the protocol promises.
"""

from __future__ import annotations

import email.utils
import math
import time
from collections.abc import Callable, Mapping, Sequence

from kernelevo_searcher.llm.tokens import estimate_tokens, message_text
from kernelevo_searcher.proposers import Usage

__all__ = ["Message", "content_text", "prompt_estimate", "reported_usage", "retry_after_s", "usage_of"]

Message = dict[str, str]


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
    return reported_usage(usage) or Usage(
        prompt_tokens=prompt_estimate(messages), completion_tokens=estimate_tokens(reply), estimated=True
    )


def reported_usage(usage: object) -> Usage | None:
    """What the provider says was used, in the words of either protocol; None where it says nothing."""
    if not isinstance(usage, Mapping):
        return None
    prompt = _count(usage.get("prompt_tokens")) or _count(usage.get("input_tokens"))
    completion = _count(usage.get("completion_tokens")) or _count(usage.get("output_tokens"))
    if not prompt and not completion:
        return None
    # Some providers leave reasoning out of the completion and count it in the total only.
    completion = max(completion, _count(usage.get("total_tokens")) - prompt)
    reasoning = _detail(usage, ("completion_tokens_details", "output_tokens_details"), "reasoning_tokens")
    cached = _detail(usage, ("prompt_tokens_details", "input_tokens_details"), "cached_tokens")
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        reasoning_tokens=min(reasoning, completion),
        cached_tokens=min(cached or _count(usage.get("prompt_cache_hit_tokens")), prompt),
    )


def _detail(usage: Mapping[str, object], names: tuple[str, ...], key: str) -> int:
    details = (usage.get(name) for name in names)
    return max((_count(each.get(key)) for each in details if isinstance(each, Mapping)), default=0)


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
