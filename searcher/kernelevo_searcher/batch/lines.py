"""The files: JSON lines in the format of OpenAI's batch API.

A request is `{"custom_id", "method", "url", "body"}`; an answer is `{"custom_id", "response": {"status_code", "body"}, "error"}`,
with either a response or an error. A line that cannot be read is told by its number and never stops the others.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = [
    "Answer",
    "BadLine",
    "Request",
    "answer_line",
    "error_line",
    "messages_of",
    "model_url",
    "read_answers",
    "read_requests",
]

CHAT_URL = "/v1/chat/completions"
RESPONSES_URL = "/v1/responses"
EVALUATIONS_URL = "/v1/evaluations"
PROBLEMS_URL = "/v1/problems"
_LONGEST = 300
"""Characters of an error's message that are passed on."""
_OK = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Something asked."""

    number: int = 0
    """Of its line, from 1, where it was read."""
    custom_id: str
    url: str
    body: Mapping[str, Any]

    def line(self) -> str:
        """As it stands in a file."""
        return json.dumps({"custom_id": self.custom_id, "method": "POST", "url": self.url, "body": self.body})


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Something answered: a body, or an error."""

    number: int
    """Of its line, from 1."""
    custom_id: str
    body: Mapping[str, Any] | None = None
    error: str = ""
    code: str = ""
    """Of the error, for programs."""


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is of no use."""

    number: int
    reason: str


def model_url(body: Mapping[str, Any]) -> str:
    """Where a request to a model goes, by its body."""
    return RESPONSES_URL if "input" in body else CHAT_URL


def messages_of(body: Mapping[str, Any]) -> Sequence[dict[str, str]]:
    """What a request asks a model, whichever protocol it is in."""
    messages: Sequence[dict[str, str]] = body["input"] if "input" in body else body["messages"]
    return messages


def answer_line(custom_id: str, body: Mapping[str, Any]) -> str:
    """An answer as it stands in a file."""
    return json.dumps(
        {"custom_id": custom_id, "response": {"status_code": _OK, "body": body}, "error": None}, allow_nan=False
    )


def error_line(custom_id: str, code: str, message: str) -> str:
    """An error as it stands in a file."""
    return json.dumps({"custom_id": custom_id, "response": None, "error": {"code": code, "message": message}})


def read_requests(text: str) -> Iterator[Request | BadLine]:
    """The requests of a file."""
    for number, item in _objects(text):
        if isinstance(item, BadLine):
            yield item
        elif not isinstance(item.get("url"), str) or not isinstance(item.get("body"), dict):
            yield BadLine(number, "it is no request: url and body are missing")
        else:
            yield Request(number=number, custom_id=item["custom_id"], url=item["url"], body=item["body"])


def read_answers(text: str) -> Iterator[Answer | BadLine]:
    """The answers of a file."""
    for number, item in _objects(text):
        yield item if isinstance(item, BadLine) else _answer(number, item)


def _objects(text: str) -> Iterator[tuple[int, dict[str, Any] | BadLine]]:
    # Not splitlines(): a line separator of Unicode may stand within a text.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
        except (ValueError, RecursionError):
            yield number, BadLine(number, "it is not JSON; was it cut off?")
            continue
        if not isinstance(item, dict) or not isinstance(item.get("custom_id"), str):
            yield number, BadLine(number, "it has no custom_id")
        else:
            yield number, item


def _answer(number: int, item: dict[str, Any]) -> Answer | BadLine:
    custom_id, response, error = item["custom_id"], item.get("response"), item.get("error")
    if isinstance(error, dict):
        return _refusal(number, custom_id, error, "error")
    if not isinstance(response, dict) or not isinstance(response.get("body"), dict):
        return BadLine(number, f"{custom_id} has neither a response with a body nor an error")
    body, status = response["body"], response.get("status_code", _OK)
    if status != _OK:
        said = body.get("error")
        return _refusal(number, custom_id, said if isinstance(said, dict) else {}, f"status {status}")
    return Answer(number=number, custom_id=custom_id, body=body)


def _refusal(number: int, custom_id: str, error: dict[str, Any], otherwise: str) -> Answer:
    code = str(error.get("code") or otherwise)
    message = " ".join(str(error.get("message") or "").split())[:_LONGEST]
    return Answer(number=number, custom_id=custom_id, code=code, error=f"{code}: {message}" if message else code)
