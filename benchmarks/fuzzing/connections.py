"""Connections that nobody should make: garbage, halves, readers that do not read, very many that say nothing."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fuzzing import http2
from fuzzing.messages import METHODS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

GARBAGE_PATIENCE_S = 0.05
"""How long the answer to garbage is read before the connection is dropped; most of it gets none."""
_AT_ONCE = 32
_CALLS_OF_ONE_READER = 8


async def connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A plain connection to `unix:PATH` or host:port."""
    if address.startswith("unix:"):
        return await asyncio.open_unix_connection(address.removeprefix("unix:"))
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


def garbage(rng: random.Random) -> bytes:
    """Bytes that are no HTTP/2, or begin as it and go wrong, or are frames that no client sends."""
    start = http2.PREFACE + http2.settings()
    path = rng.choice(METHODS).path
    match rng.randrange(12):
        case 0:
            return rng.randbytes(rng.choice([0, 1, 24, 1000, 100_000]))
        case 1:
            return b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * rng.randrange(1, 50)
        case 2:
            return b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(500)
        case 3:
            return http2.PREFACE[: rng.randrange(1, len(http2.PREFACE))]
        case 4:
            return start + rng.randbytes(rng.randrange(1, 500))
        case 5:
            frames = [
                http2.frame(
                    rng.randrange(12),
                    rng.randrange(256),
                    rng.choice([0, 1, 2, 3, 2**31 - 1]),
                    rng.randbytes(rng.randrange(64)),
                )
                for _ in range(rng.randrange(1, 20))
            ]
            return start + b"".join(frames)
        case 6:
            return start + http2.headers(1, path) + http2.frame(http2.DATA, rng.randrange(2), 1, rng.randbytes(100))
        case 7:
            lies = http2.message(
                b"x" * 10, compressed=rng.choice([0, 1, 2, 255]), length=rng.choice([0, 5, 11, 2**32 - 1])
            )
            return start + http2.headers(1, path) + http2.frame(http2.DATA, http2.END_STREAM, 1, lies)
        case 8:
            more = (
                ("grpc-encoding", rng.choice(["gzip", "nonsense"])),
                ("grpc-timeout", rng.choice(["1n", "x", "-5S"])),
            )
            data = http2.frame(http2.DATA, http2.END_STREAM, 1, http2.message(rng.randbytes(50), compressed=1))
            return start + http2.headers(1, path, more=more) + data
        case 9:
            resets = (
                http2.call(2 * i + 1, path, b"") + http2.reset(2 * i + 1) for i in range(rng.choice([1, 20, 200]))
            )
            return start + b"".join(resets)
        case 10:
            parts = (
                http2.frame(http2.CONTINUATION, 0, 1, b"\x10\x01a\x01b" * 100) for _ in range(rng.randrange(1, 60))
            )
            return start + http2.headers(1, path, flags=0) + b"".join(parts)
        case _:
            odd = struct.pack(">HI", rng.randrange(1, 8), rng.choice([0, 1, 2**24, 2**31, 2**32 - 1]))
            pings = http2.frame(http2.PING, 0, 0, b"12345678") * rng.choice([1, 100])
            return http2.PREFACE + http2.frame(http2.SETTINGS, 0, 0, odd * rng.randrange(1, 20)) + pings


async def throw_garbage(address: str, seed: int, count: int) -> None:
    """Make `count` connections, send garbage on each, read a little and drop them."""
    numbers = iter(range(count))

    async def throw() -> None:
        for number in numbers:
            data = garbage(random.Random(f"{seed}/garbage/{number}"))
            reader, writer = await connect(address)
            # The server may well close before all of it is sent.
            with contextlib.suppress(OSError, TimeoutError):
                writer.write(data)
                async with asyncio.timeout(GARBAGE_PATIENCE_S):
                    await writer.drain()
                    while await reader.read(65_536):
                        pass
            writer.transport.abort()

    async with asyncio.TaskGroup() as group:
        for _ in range(_AT_ONCE):
            group.create_task(throw())


@asynccontextmanager
async def held(address: str, openings: list[bytes]) -> AsyncIterator[None]:
    """One connection for each of `openings`, which is all that is ever sent on it; nothing is read."""
    writers: list[asyncio.StreamWriter] = []
    try:
        for opening in openings:
            _, writer = await connect(address)
            writers.append(writer)
            # Bytes that the server sends stay in the socket once the reader's small buffer is full.
            writer.write(opening)
        yield
    finally:
        for writer in writers:
            writer.transport.abort()


def idle(count: int) -> list[bytes]:
    """Connections that are set up and say no more."""
    return [http2.PREFACE + http2.settings()] * count


def half_open(seed: int, count: int) -> list[bytes]:
    """Connections that stop in the middle of the preface, of a frame, of a call."""
    rng = random.Random(f"{seed}/half")
    found = []
    for _ in range(count):
        method = rng.choice(METHODS)
        whole = http2.PREFACE + http2.settings() + http2.call(1, method.path, method.make(rng).SerializeToString())
        found.append(whole[: rng.randrange(len(whole))])
    return found


def slow_readers(seed: int, count: int) -> list[bytes]:
    """Connections with calls on every method, none of whose answers the server may send."""
    rng = random.Random(f"{seed}/slow")
    found = []
    for _ in range(count):
        calls = []
        for number in range(_CALLS_OF_ONE_READER):
            method = rng.choice(METHODS)
            calls.append(http2.call(2 * number + 1, method.path, method.make(rng).SerializeToString()))
        found.append(http2.PREFACE + http2.closed_window() + b"".join(calls))
    return found
