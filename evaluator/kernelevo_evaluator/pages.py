"""Page tokens: opaque to clients, and good for the list that they were given for alone."""

from __future__ import annotations

import base64
import binascii
import json

from kernelevo_api.errors import FieldViolation, InvalidRequest

DEFAULT_SIZE, MAXIMUM_SIZE = 100, 1000


def page_size(asked: int) -> int:
    """How many entries a page has; 0 asks for the default.

    Raises:
        InvalidRequest
    """
    if not 0 <= asked <= MAXIMUM_SIZE:
        raise _invalid("page_size", f"must be between 0 and {MAXIMUM_SIZE}")
    return asked or DEFAULT_SIZE


def write_token(before: int, problem_digest: str) -> str:
    """The token of the page that begins before an entry."""
    return base64.urlsafe_b64encode(json.dumps([before, problem_digest]).encode()).decode()


def read_token(token: str, problem_digest: str) -> int:
    """What `write_token` wrote.

    Raises:
        InvalidRequest: nonsense, or the token of another list.
    """
    try:
        before, digest = json.loads(base64.urlsafe_b64decode(token.encode()))
    except (ValueError, TypeError, binascii.Error, RecursionError):
        raise _invalid("page_token", "is not one that this evaluator gave") from None
    if type(before) is not int or not 0 <= before < 1 << 63 or digest != problem_digest:
        raise _invalid("page_token", "belongs to another list")
    return before


def _invalid(name: str, description: str) -> InvalidRequest:
    return InvalidRequest(f"{name} {description}", violations=[FieldViolation(name, description)])
