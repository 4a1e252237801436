"""Token counts without a tokenizer: what a text is likely to cost, and what it can cost at most.

The endpoint's own usage is what counts; these serve for reserving before a call and for providers that report nothing.
Tokenizers that fetch their tables at run time are not used, so counts go by bytes of UTF-8.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["bound_tokens", "estimate_tokens", "message_text"]

LIKELY_BYTES_PER_TOKEN = 3.4
"""Of Python, C++ and English mixed, over the tokenizers of current models."""
LEAST_BYTES_PER_TOKEN = 2.0
"""Dense code stays above this, so a reservation made with it holds."""
MESSAGE_TOKENS = 8
"""What a chat format adds to each message."""


def estimate_tokens(text: str) -> int:
    """The likely number of tokens in `text`."""
    return math.ceil(len(text.encode("utf-8", "replace")) / LIKELY_BYTES_PER_TOKEN)


def bound_tokens(messages: Iterable[Mapping[str, str]]) -> int:
    """More tokens than a chat of these messages will be charged for."""
    return sum(
        math.ceil(len(message_text(message).encode("utf-8", "replace")) / LEAST_BYTES_PER_TOKEN) + MESSAGE_TOKENS
        for message in messages
    )


def message_text(message: Mapping[str, str]) -> str:
    """The text of one message."""
    return message.get("content", "")
