"""Tokens: kept as digests, told apart by name, bound by their quotas, read again, never shown."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from scripted_executor import PROBLEM, ScriptedExecutor

from kernelevo_api import errors
from kernelevo_api.types import Problem, Verdict
from kernelevo_evaluator.queue import Quota
from kernelevo_evaluator.tokens import TokensInvalid, add_token, read_tokens

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(120)


def token_file(path: Path, **tokens: str) -> Path:
    """A token file that names these tokens."""
    tables = [f'[{name}]\nsha256 = "{hashlib.sha256(token.encode()).hexdigest()}"\n' for name, token in tokens.items()]
    path.write_text("\n".join(tables))
    path.chmod(0o600)
    return path


def test_what_is_added_is_read_and_the_token_itself_is_kept_nowhere(folder: Path) -> None:
    path = folder / "tokens.toml"
    one, two = add_token(path, "one", Quota()), add_token(path, "two", Quota(queued=3, running=1))
    assert path.stat().st_mode & 0o777 == 0o600
    assert one not in path.read_text()
    entries = read_tokens(path)
    assert [(entry.name, entry.quota) for entry in entries] == [("one", Quota()), ("two", Quota(3, 1))]
    assert entries[1].digest == hashlib.sha256(two.encode()).digest()
    with pytest.raises(TokensInvalid, match="has a token named one"):
        add_token(path, "one", Quota())
    with pytest.raises(TokensInvalid, match="is no name"):
        add_token(path, "a b", Quota())


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        ("", 0o600, "names nobody"),
        ("a-secret-token-in-an-old-file\n", 0o600, "not TOML"),
        ('[a]\nsha256 = "a-secret-token-in-the-wrong-place"\n', 0o600, "sha256"),
        ('[a]\ntoken = "a-secret-token"\n', 0o600, "token: Extra"),
        (f'[a]\nsha256 = "{"0" * 64}"\nqueued = 0\n', 0o600, "queued"),
        (f'[a]\nsha256 = "{"0" * 64}"\n[b]\nsha256 = "{"0" * 64}"\n', 0o600, "the same token"),
        (f'["a b"]\nsha256 = "{"0" * 64}"\n', 0o600, "is no name"),
        (f'[a]\nsha256 = "{"0" * 64}"\n', 0o620, "can be written by other users"),
    ],
)
async def test_files_that_protect_nothing_are_refused_and_not_quoted(
    host: Any, folder: Path, text: str, mode: int, words: str
) -> None:
    path = folder / "tokens.toml"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(TokensInvalid, match=words) as caught:
        await host.start(token_file=path)
    assert "secret" not in str(caught.value)


async def test_calls_without_a_known_token_are_refused(host: Any, make_request: Any, folder: Path) -> None:
    path = token_file(folder / "tokens", one="token-of-one", two="token-of-two")
    client = await host.start(token_file=path)
    for other in (client, host.client(token="another-token"), host.client(token="token-of-on")):
        for call in (other.get_capabilities(), other.evaluate(make_request())):
            with pytest.raises(errors.Unauthenticated, match="asks for a token"):
                await call
    for token in ("token-of-one", "token-of-two"):
        assert (await host.client(token=token).evaluate(make_request())).verdict is Verdict.PASSED
    async with grpc.aio.insecure_channel(host.address) as channel:
        # A probe needs no token; what the service looks like is for those who have one.
        probe = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        assert probe.status == health_pb2.HealthCheckResponse.SERVING
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([asked])):
                pass
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_the_name_of_the_token_is_the_client(host: Any, make_request: Any, folder: Path) -> None:
    await host.start(token_file=token_file(folder / "tokens", one="token-of-one", two="token-of-two"))
    asked = make_request("passed hold", client_id="two")
    running = host.ask(asked, host.client(token="token-of-one"))
    await host.executor.until("started", 1)
    with pytest.raises(errors.UnknownEvaluation, match="another client"):
        await host.client(token="token-of-two", client_id="one").cancel_evaluation(request_id=asked.request_id)
    stopped, _ = await host.client(token="token-of-one").cancel_evaluation(request_id=asked.request_id)
    assert stopped
    assert (await running).verdict is Verdict.CANCELLED


async def test_each_has_a_quota_of_its_own(host: Any, make_request: Any, folder: Path) -> None:
    path = token_file(folder / "tokens", big="token-of-big", small="token-of-small")
    path.write_text(path.read_text() + "queued = 1\nrunning = 1\n")
    await host.start(ScriptedExecutor(slots=2), token_file=path)
    big, small = host.client(token="token-of-big"), host.client(token="token-of-small", client_id="somebody-else")
    await big.register_problem(Problem(source=PROBLEM))
    asked = [host.ask(make_request("passed hold 1"), small)]
    await host.executor.until("started", 1)
    asked.append(host.ask(make_request("passed hold 2"), small))
    # A lane is free, and stays so for the others.
    await asked[-1].queued()
    with pytest.raises(errors.QueueFull, match="this client's share"):
        await small.evaluate(make_request("passed 3", client_id="a-new-name-each-time"))
    assert (await big.evaluate(make_request("passed 4"))).verdict is Verdict.PASSED
    assert host.executor.started == ["passed hold 1", "passed 4"]
    host.executor.release()
    await asyncio.gather(*(one.task for one in asked))
    assert host.executor.started == ["passed hold 1", "passed 4", "passed hold 2"]


async def test_tokens_are_read_again_without_a_restart(host: Any, folder: Path) -> None:
    path = token_file(folder / "tokens", one="token-of-one")
    await host.start(token_file=path)
    one, two = host.client(token="token-of-one"), host.client(token="token-of-two")
    await one.get_capabilities()
    token_file(path, two="token-of-two")
    host.server.reload_tokens()
    await two.get_capabilities()
    with pytest.raises(errors.Unauthenticated):
        await one.get_capabilities()
    path.write_text("nonsense")
    with pytest.raises(TokensInvalid):
        host.server.reload_tokens()
    await two.get_capabilities()


async def test_no_secret_is_logged(
    host: Any, make_request: Any, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await host.start(token_file=token_file(folder / "tokens", one="token-of-one"))
    await host.client(token="token-of-one").evaluate(make_request())
    with pytest.raises(errors.Unauthenticated) as caught:
        await host.client(token="token-that-is-wrong").get_capabilities()
    host.server.reload_tokens()
    said = "".join(capsys.readouterr()) + str(caught.value)
    assert "token-of-one" not in said
    assert "token-that-is-wrong" not in said
    assert hashlib.sha256(b"token-of-one").hexdigest() not in said
