"""Where evaluators are: addresses that are given, names that resolve to several, and files that are read again.

A source is asked again and again; what it says last counts. Nothing here connects to an evaluator.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kernelevo_api.channel import target_of

if TYPE_CHECKING:
    from collections.abc import Sequence

FILE_PREFIX = "file:"


class ListUnreadable(Exception):
    """A source cannot say where its evaluators are at the moment; the message says why."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one evaluator is."""

    name: str
    """What people call it."""
    target: str
    """What gRPC connects to."""
    server_name: str = ""
    """What its TLS certificate is checked against, where that is not in the target."""


class Source(Protocol):
    """Something that names evaluators."""

    @property
    def name(self) -> str:
        """What people call it."""

    @property
    def changes(self) -> bool:
        """Whether it may answer differently later."""

    async def places(self) -> tuple[Place, ...]:
        """Where its evaluators are now.

        Raises:
            ListUnreadable: that cannot be found out at the moment.
        """


@dataclass(frozen=True, slots=True)
class Fixed:
    """A socket's path, or a number of the network: one evaluator for good."""

    name: str
    changes: bool = False

    async def places(self) -> tuple[Place, ...]:
        return (Place(self.name, target_of(self.name)),)


@dataclass(frozen=True, slots=True)
class Resolved:
    """`host:port`, where the name may stand for several hosts, e.g. a headless service of Kubernetes."""

    name: str
    changes: bool = True

    async def places(self) -> tuple[Place, ...]:
        host, _, port = self.name.rpartition(":")
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        except OSError as error:
            raise ListUnreadable(f"{host} does not resolve: {error.strerror or error}") from error
        # One family: a host of two families is one evaluator, not two.
        family = socket.AF_INET if any(one[0] == socket.AF_INET for one in found) else socket.AF_INET6
        numbers = sorted({str(one[4][0]) for one in found if one[0] == family})
        if len(numbers) == 1:
            # By its name: gRPC looks the address up again when it reconnects.
            return (Place(self.name, self.name),)
        targets = [f"[{number}]:{port}" if family == socket.AF_INET6 else f"{number}:{port}" for number in numbers]
        return tuple(Place(f"{target} ({self.name})", target, host) for target in targets)


@dataclass(frozen=True, slots=True)
class Listed:
    """A file with one address a line; what follows a `#` is a remark. Read again each time, so that hosts come and go."""

    path: Path
    changes: bool = True

    @property
    def name(self) -> str:
        return f"{FILE_PREFIX}{self.path}"

    async def places(self) -> tuple[Place, ...]:
        try:
            text = await asyncio.to_thread(self.path.read_text, encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ListUnreadable(f"{self.path} cannot be read: {error}") from error
        addresses = [line.partition("#")[0].strip() for line in text.splitlines()]
        try:
            sources = [source_of(address, in_file=True) for address in addresses if address]
        except ValueError as error:
            raise ListUnreadable(f"{self.path}: {error}") from error
        if not sources:
            raise ListUnreadable(f"{self.path} names no evaluator")
        return tuple(place for places in await asyncio.gather(*(s.places() for s in sources)) for place in places)


def source_of(address: str, *, in_file: bool = False) -> Source:
    """The source that an address stands for: `host:port`, `unix:PATH`, or `file:PATH` for a list of them.

    Raises:
        ValueError: it is none of these; the message says what to write.
    """
    if address.startswith(FILE_PREFIX):
        path = address.removeprefix(FILE_PREFIX)
        if not path or in_file:
            raise ValueError(f"{address!r} names no list of evaluators; write file:PATH, and no file: within a file")
        return Listed(Path(path))
    target = target_of(address)
    if target.startswith("unix:"):
        return Fixed(address)
    host = target.rpartition(":")[0].strip("[]")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return Resolved(target)
    return Fixed(address)


def sources_of(addresses: Sequence[str]) -> tuple[Source, ...]:
    """The sources of several addresses; equal ones once.

    Raises:
        ValueError: one of them is no address.
    """
    return tuple(source_of(address) for address in dict.fromkeys(addresses))
