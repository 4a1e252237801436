"""What the two protocols of OpenAI-compatible endpoints have in common: a request, and a reply in one piece or in many.

A dialect knows shapes only. It decides nothing, retries nothing and charges nothing, and trusts no reply to have the shape that
its protocol promises.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import openai

    from kernelevo_searcher.llm.endpoint import EndpointSettings
    from kernelevo_searcher.llm.wire import Message

__all__ = ["Collector", "Dialect", "Failed", "NoReply", "RawReply", "dialect_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RawReply:
    """A reply, whichever protocol it came by."""

    text: str
    hidden: str = ""
    """Reasoning that was shown: it was paid for, and is no part of the reply."""
    refusal: str = ""
    """The model's words, where it declined."""
    cut: bool = False
    """It ran into its limit, or broke off."""
    declined: bool = False
    """By a filter, or by the model in the protocol's own terms."""
    usage: object = None
    """As the endpoint reports it."""
    model: object = None


class NoReply(Exception):
    """The answer holds no reply; whether it was paid, nobody knows."""


class Failed(Exception):
    """The endpoint says that it failed, in an answer that looks like a success."""

    def __init__(
        self, message: str, *, status: int = 502, code: str = "", kind: str = "", usage: object = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.kind = kind
        self.usage = usage
        """What was used all the same, where that is reported."""


class Collector(Protocol):
    """Puts a streamed reply together."""

    @property
    def text(self) -> str:
        """What arrived so far."""
        ...

    def add(self, chunk: Mapping[str, object]) -> None:
        """One event of the stream."""
        ...

    def reply(self, *, broken: bool = False) -> RawReply:
        """What it came to.

        Args:
            broken: it ended before its end.

        Raises:
            NoReply, Failed: it came to none.
        """
        ...


class Dialect(Protocol):
    """One protocol."""

    def arguments(self, settings: EndpointSettings, messages: Sequence[Message], allowed: int) -> dict[str, Any]:
        """The SDK's arguments for a request whose reply has `allowed` tokens at most."""
        ...

    async def whole(self, sdk: openai.AsyncOpenAI, arguments: Mapping[str, Any]) -> str:
        """Send a request; the body of the answer."""
        ...

    async def stream(self, sdk: openai.AsyncOpenAI, arguments: Mapping[str, Any], *, usage: bool) -> Any:
        """Send a request that is answered in events."""
        ...

    def collector(self) -> Collector:
        """For one streamed reply."""
        ...

    def read(self, payload: Mapping[str, object]) -> RawReply:
        """The reply in an answer.

        Raises:
            NoReply, Failed: it holds none.
        """
        ...


def dialect_of(api: str) -> Dialect:
    """By its name in the settings: "chat" or "responses"."""
    from kernelevo_searcher.llm.chat import ChatDialect
    from kernelevo_searcher.llm.responses import ResponsesDialect

    return ResponsesDialect() if api == "responses" else ChatDialect()


def failure_in(payload: Mapping[str, object]) -> Failed | None:
    """Some routers answer 200 and put the upstream's failure into the body; the responses protocol does so by design."""
    error = payload.get("error")
    if not isinstance(error, dict):
        return None
    code = error.get("code")
    return Failed(
        str(error.get("message", "")),
        status=code if isinstance(code, int) and not isinstance(code, bool) else 502,
        code=str(code),
        kind=str(error.get("type")),
        usage=payload.get("usage"),
    )
