"""Where the evaluator listens: a private Unix socket, TLS, or plain TCP on a loopback address by explicit choice."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from kernelevo_api.channel import is_local

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernelevo_evaluator.settings import EvaluatorSettings


OPEN_FILES = 65_536
"""What a server wants, where the host lets it: each connection is an open file, and 1024, the usual soft limit, are few."""


class ListenError(Exception):
    """The address cannot be listened on; the message says why and what to do."""


def bind(server: grpc.aio.Server, settings: EvaluatorSettings) -> str:
    """Bind `server` as the settings say; returns the address that clients use.

    Raises:
        ListenError
    """
    address = settings.address
    if address.startswith("unix:"):
        return _bind_unix(server, address)
    if settings.tls_certificate is not None and settings.tls_key is not None:
        if settings.token_file is None and settings.tls_client_ca is None:
            raise ListenError(
                f"{address} would serve anyone who can reach it; give --token-file, or --tls-client-ca for mutual TLS"
            )
        return _bind_tcp(server, address, _credentials(settings))
    if not settings.insecure_loopback:
        raise ListenError(
            f"{address} is TCP: give --tls-certificate and --tls-key with --token-file, or, for a loopback address, "
            "--insecure-loopback"
        )
    if not is_local(address):
        raise ListenError(f"{address} is no loopback address; plain text is allowed on 127.0.0.1, [::1] and localhost")
    return _bind_tcp(server, address, None)


def raise_open_files() -> None:
    """Let this process hold `OPEN_FILES` files, or as many as its hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _credentials(settings: EvaluatorSettings) -> grpc.ServerCredentials:
    assert settings.tls_certificate is not None
    assert settings.tls_key is not None
    try:
        pair = (settings.tls_key.read_bytes(), settings.tls_certificate.read_bytes())
        authority = settings.tls_client_ca.read_bytes() if settings.tls_client_ca is not None else None
    except OSError as error:
        raise ListenError(f"a TLS file cannot be read: {error}") from error
    return grpc.ssl_server_credentials([pair], root_certificates=authority, require_client_auth=authority is not None)


def _bind_tcp(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None) -> str:
    try:
        port = (
            server.add_secure_port(address, credentials)
            if credentials is not None
            else server.add_insecure_port(address)
        )
    except (RuntimeError, ValueError) as error:
        raise ListenError(f"cannot listen on {address}: {error}") from error
    if not port:
        raise ListenError(f"cannot listen on {address}; the TLS files may not fit together")
    return f"{address.rpartition(':')[0]}:{port}"


def _bind_unix(server: grpc.aio.Server, address: str) -> str:
    path = Path(address.removeprefix("unix:"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ListenError(f"cannot make the folder of {path}: {error}") from error
    _remove_stale(path)
    try:
        with _umask(0o177):  # the socket is born private: a chmod afterwards would leave a gap
            server.add_insecure_port(f"unix:{path}")
    except RuntimeError as error:
        raise ListenError(f"cannot listen on {path}: {error}") from error
    return f"unix:{path}"


def _remove_stale(path: Path) -> None:
    """Remove the socket of a server that is gone; leave anything else alone."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ListenError(f"{path} exists and is no socket; choose another path with --listen")
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            raise ListenError(f"{path} is in use, or not ours: {error}") from error
    raise ListenError(f"another server listens on {path}")


@contextlib.contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)
