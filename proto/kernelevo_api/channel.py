"""Where an evaluator is and how to talk to it: addresses, TLS, tokens, bounds, and when to try again.

Shared by the two clients; nothing here sends anything.
"""

from __future__ import annotations

import ipaddress
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from kernelevo_api.errors import CallRefused, EvaluatorError, QueueFull, Unreachable

if TYPE_CHECKING:
    from collections.abc import Sequence

MESSAGE_LIMIT_BYTES = 16 << 20
"""Longest message that either side takes."""
_UNIX_PATH_BYTES = 107
"""Longest path of a Unix socket on Linux."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """TLS towards the server: PEM text. The system's certificates where no root is given; a pair of one's own for mutual TLS."""

    root_certificates: bytes | None = None
    private_key: bytes | None = None
    certificate_chain: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How long a call is tried again, in seconds of waiting. Zero turns a kind of retry off."""

    queue_s: float = 600.0
    """Behind a full queue, waiting as long as the server asks each time."""
    unavailable_s: float = 30.0
    """While a server that has answered before is gone, draining or at fault."""
    first_delay_s: float = 0.2
    maximum_delay_s: float = 10.0


class Patience:
    """The retries of one call: says how long to wait before the next try, or that there is none."""

    def __init__(self, policy: RetryPolicy, *, connected: bool) -> None:
        self._policy = policy
        self._connected = connected
        self._next = policy.first_delay_s
        self._waited = {True: 0.0, False: 0.0}

    def answered(self) -> None:
        """The server said something: a connection that breaks from now on is worth waiting for."""
        self._connected = True

    def delay(self, error: EvaluatorError) -> float | None:
        """Seconds to wait before the next try after `error`; `None` to give up and raise it."""
        if not error.retryable or (isinstance(error, Unreachable) and not self._connected):
            return None
        full = isinstance(error, QueueFull)
        asked = error.retry_delay.total_seconds() if isinstance(error, CallRefused) and error.retry_delay else 0.0
        # Jitter, so that clients refused together do not come back together.
        delay = max(asked, self._next) * random.uniform(1.0, 1.25)  # noqa: S311
        self._next = min(self._next * 2, self._policy.maximum_delay_s)
        allowed = self._policy.queue_s if full else self._policy.unavailable_s
        if self._waited[full] + delay > allowed:
            return None
        self._waited[full] += delay
        return delay


def target_of(address: str) -> str:
    """gRPC's target for `unix:/path`, a bare path, or `host:port`.

    Raises:
        ValueError: none of these, or a path too long for a socket; the message says what to do.
    """
    address = address.strip()
    path: str | None = None
    if address.startswith("unix:"):
        path = address.removeprefix("unix:")
        if path.startswith("//"):
            path = path.removeprefix("//")
    elif address.startswith(("/", "./", "../", "~")) or (address.endswith(".sock") and ":" not in address):
        path = address
    if path is not None:
        if not path:
            raise ValueError(f"no path in the address {address!r}; write unix:/path/to/evaluator.sock")
        if len(path.encode()) > _UNIX_PATH_BYTES:
            raise ValueError(f"{path} is longer than the {_UNIX_PATH_BYTES} bytes a Unix socket's path may have")
        return f"unix:{path}"
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 <= int(port) < 65536:
        raise ValueError(f"{address!r} is no address; write unix:/path/to/evaluator.sock or host:port")
    return address


def is_local(target: str) -> bool:
    """Whether what is sent to `target` stays on this host."""
    if target.startswith("unix:"):
        return True
    host = target.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def channel_options(server_name: str = "") -> Sequence[tuple[str, int | str]]:
    """Bounds on messages, quick reconnection, and pings that notice a host that vanished.

    Args:
        server_name: what the server's certificate is checked against, where the target is a number.
    """
    named = (("grpc.ssl_target_name_override", server_name), ("grpc.default_authority", server_name))
    return (
        *(named if server_name else ()),
        ("grpc.max_send_message_length", MESSAGE_LIMIT_BYTES),
        ("grpc.max_receive_message_length", MESSAGE_LIMIT_BYTES),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2000),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        # A process may talk to several servers that followed each other on one path: never share a connection.
        ("grpc.use_local_subchannel_pool", 1),
    )


def credentials(tls: Tls | None) -> grpc.ChannelCredentials | None:
    """gRPC's credentials for `tls`; `None` for plain text."""
    if tls is None:
        return None
    return grpc.ssl_channel_credentials(tls.root_certificates, tls.private_key, tls.certificate_chain)


def metadata(token: str | None, target: str, tls: Tls | None) -> tuple[tuple[str, str], ...]:
    """What every call carries.

    Raises:
        ValueError: the token would cross a network in plain text.
    """
    if token is None:
        return ()
    if tls is None and not is_local(target):
        raise ValueError(f"a token for {target} would cross the network in plain text; use TLS")
    return (("authorization", f"Bearer {token}"),)
