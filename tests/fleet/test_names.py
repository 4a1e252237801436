"""A name that stands for several hosts, as a headless service of Kubernetes does, over TLS."""

from __future__ import annotations

import shutil
import socket
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.fleet.conftest import make_certificate

from kernelevo_api.channel import Tls
from kernelevo_api.pool import EvaluatorPool, PoolSettings
from kernelevo_evaluator.queue import Quota
from kernelevo_evaluator.tokens import add_token

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fleet.conftest import Host

NAME = "evaluators.test"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
@pytest.mark.skipif(sys.platform != "linux", reason="all of 127/8 is this host on Linux")
async def test_each_address_of_a_name_is_an_evaluator_of_its_own(
    hosts: Callable[..., list[Host]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_certificate(tmp_path, f"DNS:{NAME}")
    tokens = tmp_path / "tokens"
    token = add_token(tokens, "fleet", Quota())
    port, numbers = free_port(), ["127.0.0.1", "127.0.0.2"]
    pair = {"tls_certificate": tmp_path / "tls.crt", "tls_key": tmp_path / "tls.key", "token_file": tokens}
    for number in numbers:
        hosts(1, listen=f"{number}:{port}", **pair)

    real = socket.getaddrinfo

    def resolve(host: str, *arguments: Any, **named: Any) -> Any:
        # The name service stands at the process boundary.
        if host != NAME:
            return real(host, *arguments, **named)
        return [one for number in numbers for one in real(number, *arguments, **named)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    tls = Tls(root_certificates=(tmp_path / "tls.crt").read_bytes())
    pool = EvaluatorPool.of([f"{NAME}:{port}"], tls=tls, token=token, settings=PoolSettings(look_timeout_s=5.0))
    try:
        await pool.connect()
        names = [f"{number}:{port} ({NAME}:{port})" for number in numbers]
        assert [endpoint.name for endpoint in pool.endpoints] == names
    finally:
        await pool.close()
