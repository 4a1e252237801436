"""The token file: who may call, by name, with a quota each. Holds digests, never a token.

TOML, a table for each name:

    [search-team]
    sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    queued = 16     # most of its requests that wait; the setting queue_capacity_per_client where absent
    running = 2     # most of its requests that run at once; no bound of its own where absent

A plain digest is enough: `new_token` makes 256 random bits, which nobody guesses from it.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import pydantic

from kernelevo_evaluator.queue import Quota

if TYPE_CHECKING:
    from pathlib import Path

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_DIGEST = r"^[0-9a-f]{64}$"


class TokensInvalid(Exception):
    """The token file cannot be used; the message says why and never holds what stands in it."""


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """One who may call."""

    name: str
    digest: bytes
    """SHA-256 of the token."""
    quota: Quota


class _Table(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", hide_input_in_errors=True)

    sha256: Annotated[str, pydantic.Field(pattern=_DIGEST)]
    queued: Annotated[int, pydantic.Field(gt=0)] | None = None
    running: Annotated[int, pydantic.Field(gt=0)] | None = None


def digest_of_token(token: str) -> bytes:
    """What is kept of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def read_tokens(path: Path) -> tuple[TokenEntry, ...]:
    """Everyone that the file names.

    Raises:
        TokensInvalid: unreadable, open for others to write, malformed, or empty.
    """
    try:
        if path.stat().st_mode & 0o022:
            raise TokensInvalid(f"{path} can be written by other users, who could let themselves in; chmod go-w it")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TokensInvalid(f"{path} cannot be read: {error}") from error
    entries = _parse(path, text)
    if not entries:
        raise TokensInvalid(f"{path} names nobody; `kernelevo-evaluator token NAME --token-file {path}` adds one")
    return entries


def add_token(path: Path, name: str, quota: Quota) -> str:
    """Add a name to the file, which is made where there is none; returns its new token, which is kept nowhere.

    Raises:
        TokensInvalid: the name is taken or no name, or the file cannot be used.
    """
    if not _NAME.fullmatch(name):
        raise TokensInvalid(f"{name!r} is no name: up to 64 letters, digits, - and _")
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if name in (entry.name for entry in _parse(path, text)):
            raise TokensInvalid(f"{path} has a token named {name}; remove its table first, or take another name")
        token = new_token()
        lines = [f"[{name}]", f'sha256 = "{digest_of_token(token).hex()}"']
        lines += [f"queued = {quota.queued}"] if quota.queued is not None else []
        lines += [f"running = {quota.running}"] if quota.running is not None else []
        text = f"{text.rstrip()}\n\n" if text.strip() else ""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(("\n" if text else "") + "\n".join(lines) + "\n")
    except (OSError, UnicodeDecodeError) as error:
        raise TokensInvalid(f"{path} cannot be used: {error}") from error
    return token


def new_token() -> str:
    """256 random bits as text."""
    return secrets.token_urlsafe(32)


def _parse(path: Path, text: str) -> tuple[TokenEntry, ...]:
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        # Not the parser's words: they may quote the line, and in an old file that is a token.
        raise TokensInvalid(
            f"{path} is not TOML with a table for each name; it holds digests, not tokens: "
            f"`kernelevo-evaluator token NAME --token-file {path}` writes it"
        ) from None
    entries = []
    for name, table in tables.items():
        if not _NAME.fullmatch(name):
            raise TokensInvalid(f"a name in {path} is no name: up to 64 letters, digits, - and _")
        try:
            read = _Table.model_validate(table)
        except pydantic.ValidationError as error:
            problems = "; ".join(f"{'.'.join(map(str, one['loc'])) or name}: {one['msg']}" for one in error.errors())
            raise TokensInvalid(f"[{name}] in {path} cannot be used: {problems}") from None
        entries.append(TokenEntry(name, bytes.fromhex(read.sha256), Quota(read.queued, read.running)))
    digests = [entry.digest for entry in entries]
    if len(set(digests)) != len(digests):
        raise TokensInvalid(f"two names in {path} have the same token")
    return tuple(entries)
