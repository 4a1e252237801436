"""How any message becomes bytes, how many may be taken, and what is raised for one that is not what the protocol says."""

from __future__ import annotations

import msgspec

REPLY_LIMIT = 1 << 20
"""Longest message taken from a runner, in bytes, builds aside."""
BUILD_REQUEST_LIMIT = 8 << 20
"""Longest message taken from a runner while its module is being imported: it may hold sources to build."""
COMMAND_LIMIT = 64 << 20
"""Longest message a runner or a referee takes from its own server."""


class MessageInvalid(Exception):
    """A message that is not what the protocol says."""


_encoder = msgspec.msgpack.Encoder()


def encode(message: msgspec.Struct) -> bytes:
    """A message as bytes."""
    return _encoder.encode(message)
