"""Frames of HTTP/2 by hand, for what no library would send."""

from __future__ import annotations

import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, END_HEADERS, ACK = 0x1, 0x4, 0x1
INITIAL_WINDOW_SIZE = 4


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame; its length is right."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def settings() -> bytes:
    """Settings that change nothing."""
    return frame(SETTINGS, 0, 0)


def closed_window() -> bytes:
    """Settings under which the peer may send no data on any stream."""
    return frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, 0))


def reset(stream: int) -> bytes:
    """The end of a call that its client no longer wants."""
    return frame(RST_STREAM, 0, stream, struct.pack(">I", 8))


def headers(stream: int, path: str, *, more: tuple[tuple[str, str], ...] = (), flags: int = END_HEADERS) -> bytes:
    """The beginning of a call of gRPC."""
    fields = (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        *more,
    )
    return frame(HEADERS, flags, stream, b"".join(_literal(name, value) for name, value in fields))


def message(data: bytes, *, compressed: int = 0, length: int | None = None) -> bytes:
    """A message of gRPC with its prefix; `length` where it lies."""
    return struct.pack(">BI", compressed, len(data) if length is None else length) + data


def call(stream: int, path: str, data: bytes) -> bytes:
    """A whole call with one message."""
    return headers(stream, path) + frame(DATA, END_STREAM, stream, message(data))


def _literal(name: str, value: str) -> bytes:
    # HPACK: literal, never indexed, a new name, no Huffman; all lengths are below 127.
    parts = [name.encode(), value.encode()]
    return b"\x10" + b"".join(bytes([len(part)]) + part for part in parts)
