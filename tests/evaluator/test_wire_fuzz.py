"""What nobody should send, sent to a real server: a short run of what benchmarks/wire_fuzz.py does at length."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from fuzzing import http2
from fuzzing.calls import message
from fuzzing.campaign import Plan, carry_out
from fuzzing.connections import held
from fuzzing.messages import METHODS, PROBLEM
from fuzzing.suspects import described, offenders
from server_process import STOP_S, server

from kernelevo_api import errors
from kernelevo_api.channel import RetryPolicy
from kernelevo_api.client import AsyncEvaluatorClient
from kernelevo_api.evaluator.v1 import evaluator_pb2
from kernelevo_api.types import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from server_process import Server

pytestmark = pytest.mark.timeout(280)
PLAN = Plan(seed=7, messages=1500, garbage=60, idle=200, half_open=20, slow=8, batches=4)
CAPABILITIES = "/kernelevo.evaluator.v1.EvaluatorService/GetCapabilities"
GROWTH_BYTES = 300 << 20
"""Far more than all of it may take, far less than what is never given back would."""


@pytest.fixture
def found() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="ke") as folder, server(Path(folder)) as one:
        yield one


async def test_a_server_outlives_what_nobody_should_send(found: Server) -> None:
    await found.ready()
    outcome = await carry_out(PLAN, found)
    assert outcome.tally.tried == PLAN.messages
    assert outcome.tally.faults == []
    assert outcome.unhealthy == []
    assert found.complaints() == []
    assert max(outcome.resident_bytes) - outcome.resident_bytes[0] < GROWTH_BYTES
    # It saw what it was meant to see: good requests and bad ones, of every kind.
    assert {"OK", "INVALID_ARGUMENT", "NOT_FOUND"} <= set(outcome.tally.statuses)
    assert {"valid", "values", "bytes", "wire types", "garbage", "nested"} <= set(outcome.tally.kinds)


async def test_a_server_that_ends_is_told_of_with_what_it_was_answering(found: Server) -> None:
    await found.ready()

    def kill_after_the_first_batch(_line: str) -> None:
        found.process.kill()

    outcome = await carry_out(PLAN, found, kill_after_the_first_batch)
    assert outcome.crash == -signal.SIGKILL
    assert PLAN.messages // PLAN.batches <= outcome.tally.tried < PLAN.messages
    assert len(outcome.resident_bytes) == 1
    assert outcome.tally.faults == []
    assert found.resident_bytes() is None


async def test_the_message_that_ends_a_server_is_found_among_those_it_was_answering() -> None:
    command = (sys.executable, str(Path(__file__).with_name("fragile_server.py")))
    assert await offenders(7, range(6, 11), command) == [8]
    told = described(7, 8)
    assert told["method"] == message(7, 8).method.path
    assert message(7, 8).data.startswith(bytes.fromhex(told["begins_with"]))


async def test_readers_that_do_not_read_do_not_hold_up_the_end(found: Server) -> None:
    await found.ready()
    opening = http2.PREFACE + http2.closed_window()
    calls = [http2.call(1, method.path, b"") for method in METHODS]
    async with held(found.address, [opening + call for call in calls]):
        assert await found.healthy()
        await asyncio.sleep(0.5)  # The answers are on their way, and stay there.
        found.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(found.process.wait, STOP_S) == 0
    assert found.complaints() == []


async def test_many_who_reset_what_they_ask_for_do_not_cancel_the_calls_of_others(found: Server) -> None:
    await found.ready()
    # At once more calls than gRPC itself lets wait, each reset in the same breath.
    calls = (http2.call(2 * i + 1, CAPABILITIES, b"") + http2.reset(2 * i + 1) for i in range(180))
    opening = http2.PREFACE + http2.settings() + b"".join(calls)
    async with grpc.aio.insecure_channel(found.address) as channel:
        ask = channel.unary_unary(CAPABILITIES)
        await ask(b"", timeout=60)

        async def keep_asking() -> None:
            for _ in range(30):
                assert await ask(b"", timeout=60)

        async with held(found.address, [opening] * 20), asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(keep_asking())


async def test_a_call_that_the_server_drops_may_be_sent_again() -> None:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Dropping(),))
    with tempfile.TemporaryDirectory(prefix="ke") as folder:
        address = f"unix:{folder}/e.sock"
        server.add_insecure_port(address)
        await server.start()
        async with AsyncEvaluatorClient(address, retry=RetryPolicy(unavailable_s=0)) as client:
            with pytest.raises(errors.Unreachable, match="dropped") as dropped:
                await client.get_capabilities()
        assert dropped.value.retryable
        await server.stop(None)


class Dropping(grpc.GenericRpcHandler):
    """Cancels what it is asked."""

    def service(self, handler_call_details: Any) -> Any:
        async def drop(_request: bytes, context: Any) -> bytes:
            await context.abort(grpc.StatusCode.CANCELLED, "CANCELLED")
            raise AssertionError

        return grpc.unary_unary_rpc_method_handler(drop)


@pytest.mark.parametrize("method", [one for one in METHODS if not one.streams_in], ids=lambda one: one.path)
async def test_bytes_that_are_no_message_are_the_callers_mistake(host: Any, method: Any) -> None:
    await host.start()
    async with grpc.aio.insecure_channel(host.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await _all(channel.unary_stream(method.path)(b"\xff", timeout=30))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        error = errors.from_rpc_error(refused.value, host.address)
        assert isinstance(error, errors.InvalidRequest)


async def test_a_stream_of_requests_is_read_as_carefully(host: Any) -> None:
    await host.start()
    (method,) = (one for one in METHODS if one.streams_in)
    good = b"\x3a\x00"  # list_services
    async with grpc.aio.insecure_channel(host.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await _all(channel.stream_stream(method.path)(iter([good, b"\xff"]), timeout=30))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"client_id": "x" * 129}, "client_id"),
        ({"client_id": "a\nb"}, "client_id"),
        ({"name": "n" * 1001}, "problem.name"),
    ],
)
async def test_what_is_kept_of_a_registration_is_bounded(host: Any, fields: dict[str, str], field: str) -> None:
    await host.start()
    client = host.client(client_id=fields.get("client_id", "me"))
    with pytest.raises(errors.InvalidRequest) as refused:
        await client.register_problem(Problem(source=PROBLEM, name=fields.get("name", "")))
    assert [one.field for one in refused.value.violations] == [field]


def test_a_server_may_hold_more_connections_than_the_usual_limit() -> None:
    program = """
import resource
from kernelevo_evaluator.sockets import OPEN_FILES, raise_open_files
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
raise_open_files()
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard if 0 < hard < OPEN_FILES else OPEN_FILES, hard)
"""
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_message_is_told_by_its_number_and_every_method_gets_some() -> None:
    assert message(3, 4) == message(3, 4) != message(3, 5)
    drawn = [message(1, number) for number in range(400)]
    ours = {f"/kernelevo.evaluator.v1.EvaluatorService/{one.name}" for one in _service().methods}
    assert ours < {one.path for one in METHODS} == {one.method.path for one in drawn}


def _service() -> Any:
    return evaluator_pb2.DESCRIPTOR.services_by_name["EvaluatorService"]


async def _all(call: Any) -> list[bytes]:
    return [answer async for answer in call]
