"""The settings of one endpoint and model, and of how patient the client is with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kernelevo_searcher.llm.secret import Secret

__all__ = ["OPENAI_URL", "EndpointSettings", "RetrySettings"]

OPENAI_URL = "https://api.openai.com/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrySettings:
    """How long one call is pursued before the run is paused."""

    attempts: int = 6
    first_delay_s: float = 1.0
    """Doubled after each attempt, and drawn from its upper half."""
    longest_delay_s: float = 60.0
    """Of our own back-off. What the endpoint asks for by Retry-After is not shortened."""
    patience_s: float = 300.0
    """Most waiting between attempts of one call, Retry-After included; a longer wait pauses the run instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSettings:
    """One model behind one OpenAI-compatible endpoint.

    Raises:
        ValueError: the URL is none, or carries credentials (which would end up in logs; give the key on its own).
    """

    model: str
    base_url: str = OPENAI_URL
    """Up to and including the version, e.g. `http://localhost:8000/v1`."""
    api: Literal["chat", "responses"] = "chat"
    """The protocol: chat completions, which every server speaks, or OpenAI's responses."""
    api_key: Secret | None = None
    """Absent for an endpoint that asks for none."""
    max_reply_tokens: int = 16_384
    """Largest reply, reasoning included."""
    reasoning: bool = False
    """A reasoning model: no sampling parameters are sent."""
    reasoning_effort: str | None = None
    """E.g. "low", "medium", "high"; only sent to a reasoning model."""
    temperature: float | None = None
    """Absent leaves it to the endpoint. Never sent to a reasoning model."""
    reply_limit_parameter: Literal["max_completion_tokens", "max_tokens"] = "max_completion_tokens"
    """How a chat endpoint calls its limit; older servers know only `max_tokens`."""
    system_role: Literal["system", "developer"] = "system"
    stream: bool = False
    """Read the reply as it is written: a broken connection then leaves what had arrived."""
    stream_usage: bool = True
    """Ask a chat's stream for its usage; some servers refuse the question."""
    timeout_s: float = 900.0
    """Longest silence of the endpoint within one attempt: without streaming, the whole reply."""
    connect_timeout_s: float = 15.0
    longest_reply_s: float = 1800.0
    """Longest time of one attempt, however lively the endpoint."""
    extra_body: Mapping[str, object] = field(default_factory=dict)
    """Further fields of the request, as the endpoint documents them."""
    retry: RetrySettings = RetrySettings()

    def __post_init__(self) -> None:
        parts = urlsplit(self.base_url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"not the URL of an endpoint: {parts.scheme}://{parts.hostname or ''}")
        if parts.username is not None or parts.password is not None or parts.query:
            raise ValueError("the endpoint's URL must not carry credentials or a query; give the API key on its own")
        if self.max_reply_tokens < 1:
            raise ValueError("max_reply_tokens must be positive")
