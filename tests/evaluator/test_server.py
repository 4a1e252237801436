"""Who may connect and how; health, reflection."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import socket
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from scripted_executor import PROBLEM, ScriptedExecutor, candidate
from test_tokens import token_file

from kernelevo_api import errors
from kernelevo_api.channel import Tls, target_of
from kernelevo_api.client import AsyncEvaluatorClient
from kernelevo_api.types import Verdict
from kernelevo_evaluator.server import SERVICE
from kernelevo_evaluator.sockets import ListenError

pytestmark = pytest.mark.timeout(120)

TOKEN = "0123456789abcdef-secret"


@pytest.fixture
def tokens(folder: Path) -> Path:
    return token_file(folder / "tokens", one=TOKEN)


async def _health(address: str, service: str = SERVICE) -> int:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return int((await stub.Check(health_pb2.HealthCheckRequest(service=service))).status)


async def test_health_follows_devices_and_the_drain(host: Any, make_request: Any) -> None:
    await host.start()
    serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    assert await _health(host.address, "") == serving
    async with grpc.aio.insecure_channel(host.address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert (await watch.read()).status == serving
        host.executor.well = False
        assert (await watch.read()).status == not_serving
        host.executor.well = True
        assert (await watch.read()).status == serving
        running = host.ask(make_request("passed hold"))
        await host.executor.until("started", 1)
        stopping = asyncio.create_task(host.stop(60))
        assert (await watch.read()).status == not_serving
        watch.cancel()
    host.executor.release()
    assert (await running).verdict is Verdict.PASSED
    await stopping


async def test_a_client_in_another_language(host: Any) -> None:
    """buf is written in Go: it knows nothing of this project but what reflection tells it."""
    buf = Path(sys.executable).parent / "buf"
    if not buf.exists():
        pytest.skip("buf is not installed")
    await host.start()

    async def call(method: str, data: dict[str, Any]) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            *(buf, "curl", "--protocol", "grpc", "--http2-prior-knowledge", "--reflect", "--data", json.dumps(data)),
            *("--unix-socket", host.address.removeprefix("unix:"), f"http://localhost/{SERVICE}/{method}"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        return process.returncode or 0, output.decode()

    status, said = await call("GetCapabilities", {})
    assert status == 0, said
    assert json.loads(said)["devices"][0]["name"] == "scripted"
    asked = {
        "requestId": str(uuid.uuid4()),
        "problem": {"source": PROBLEM},
        "candidate": {"source": candidate("output_mismatch")},
    }
    status, said = await call("Evaluate", asked)
    assert status == 0, said
    assert '"verdict": "VERDICT_OUTPUT_MISMATCH"' in said.replace('":"', '": "')
    status, said = await call("Evaluate", asked | {"requestId": "nonsense"})
    assert status != 0
    details = {one["type"]: base64.b64decode(one["value"] + "==") for one in json.loads(said)["details"]}
    assert b"INVALID_REQUEST" in details["google.rpc.ErrorInfo"]
    assert b"request_id" in details["google.rpc.BadRequest"]


async def test_reflection_names_the_service(host: Any) -> None:
    await host.start()
    async with grpc.aio.insecure_channel(host.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        async for answer in stub.ServerReflectionInfo(iter([asked])):
            names = {one.name for one in answer.list_services_response.service}
    assert {SERVICE, "grpc.health.v1.Health"} <= names


async def test_plain_tcp_needs_a_flag_and_a_loopback_address(host: Any, make_request: Any) -> None:
    for settings, words in (
        ({"listen": "127.0.0.1:0"}, "--insecure-loopback"),
        ({"listen": "0.0.0.0:0", "insecure_loopback": True}, "no loopback address"),
        ({"listen": "192.0.2.1:0", "insecure_loopback": True}, "no loopback address"),
    ):
        with pytest.raises(ListenError, match=words):
            await host.start(**settings)
    client = await host.start(listen="127.0.0.1:0", insecure_loopback=True)
    assert host.address.startswith("127.0.0.1:")
    assert not host.address.endswith(":0")
    assert (await client.evaluate(make_request())).verdict is Verdict.PASSED


async def test_a_port_that_is_taken(host: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ListenError, match="cannot listen"):
        await host.start(listen=f"127.0.0.1:{taken.getsockname()[1]}", insecure_loopback=True)


async def test_a_file_in_the_place_of_the_socket_is_left_alone(host: Any, folder: Path) -> None:
    (folder / "e.sock").write_text("mine")
    with pytest.raises(ListenError, match="is no socket"):
        await host.start()
    assert (folder / "e.sock").read_text() == "mine"


async def test_an_executor_that_cannot_start_leaves_nothing(host: Any, folder: Path) -> None:
    class Broken(ScriptedExecutor):
        async def start(self) -> Any:
            raise RuntimeError("no device")

    with pytest.raises(RuntimeError, match="no device"):
        await host.start(Broken())
    assert host.executor.closed
    assert not (folder / "e.sock").exists()
    await host.start()


def _certificates(folder: Path) -> None:
    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    new = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    openssl(*new, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca")
    for name in ("server", "client"):
        openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}"),
            *("-keyout", f"{name}.key", "-out", f"{name}.csr"),
        )
        (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
        openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"),
            *("-days", "2", "-extfile", "names", "-out", f"{name}.pem"),
        )


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
async def test_tls_with_a_token_and_mutual(host: Any, make_request: Any, folder: Path, tokens: Path) -> None:
    _certificates(folder)
    pair = {"tls_certificate": folder / "server.pem", "tls_key": folder / "server.key", "listen": "127.0.0.1:0"}
    with pytest.raises(ListenError, match="would serve anyone"):
        await host.start(**pair)
    await host.start(**pair, token_file=tokens)
    trusted = Tls(root_certificates=(folder / "ca.pem").read_bytes())
    assert (await host.client(tls=trusted, token=TOKEN).evaluate(make_request())).verdict is Verdict.PASSED
    with pytest.raises(errors.Unauthenticated):
        await host.client(tls=trusted).get_capabilities()
    with pytest.raises(errors.Unreachable):
        await host.client(token=TOKEN).get_capabilities(timeout=5)
    await host.stop()

    await host.start(**pair, tls_client_ca=folder / "ca.pem")
    with pytest.raises(errors.Unreachable):
        await host.client(tls=trusted).get_capabilities(timeout=5)
    mutual = Tls(
        root_certificates=trusted.root_certificates,
        private_key=(folder / "client.key").read_bytes(),
        certificate_chain=(folder / "client.pem").read_bytes(),
    )
    # The certificate's name is the client, whatever the request says: nobody else cancels its work.
    asked = make_request("passed hold", client_id="somebody")
    running = host.ask(asked, host.client(tls=mutual))
    await host.executor.until("started", 1)
    assert host.server.evaluations._requests.find(request_id=asked.request_id).accepted.client_id == "cert:localhost"
    host.executor.release()
    assert (await running).verdict is Verdict.PASSED


def test_a_token_does_not_cross_a_network_in_plain_text() -> None:
    with pytest.raises(ValueError, match="use TLS"):
        AsyncEvaluatorClient("example.org:7777", token=TOKEN)
    AsyncEvaluatorClient("127.0.0.1:7777", token=TOKEN)
    AsyncEvaluatorClient("/run/e.sock", token=TOKEN)


@pytest.mark.parametrize(
    ("address", "target"),
    [
        ("unix:/run/e.sock", "unix:/run/e.sock"),
        ("unix:///run/e.sock", "unix:/run/e.sock"),
        ("/run/e.sock", "unix:/run/e.sock"),
        ("./e.sock", "unix:./e.sock"),
        ("e.sock", "unix:e.sock"),
        ("localhost:80", "localhost:80"),
        ("[::1]:80", "[::1]:80"),
    ],
)
def test_addresses(address: str, target: str) -> None:
    assert target_of(address) == target


@pytest.mark.parametrize("address", ["", "unix:", "host", "host:", ":80", "host:99999", "host:port", "/" + "x" * 200])
def test_what_is_no_address_says_so(address: str) -> None:
    with pytest.raises(ValueError, match=r"no address|no path|longer than"):
        target_of(address)
