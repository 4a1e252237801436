"""Spans of what is asked and done: out of a real server, into a real exporter, and over OTLP to a real receiver."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from scripted_executor import PROBLEM
from structlog.testing import capture_logs

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from server_process import server

from kernelevo_api import errors
from kernelevo_api.client import AsyncEvaluatorClient, EvaluatorClient, problem_digest
from kernelevo_api.evaluator.v1 import evaluator_pb2 as pb
from kernelevo_api.trace_context import trace_metadata
from kernelevo_api.types import Problem, Verdict
from kernelevo_evaluator import telemetry
from kernelevo_evaluator.otel import OpenTelemetry
from kernelevo_evaluator.queue import Quota
from kernelevo_evaluator.server import evaluator_version
from kernelevo_evaluator.tokens import add_token

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.timeout(120)

EVALUATE = "kernelevo.evaluator.v1.EvaluatorService/Evaluate"
REGISTER = "kernelevo.evaluator.v1.EvaluatorService/RegisterProblem"


class Spans:
    """What was traced. Read it when the server has stopped: calls may outlive their answers by a little."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.telemetry = OpenTelemetry(self.provider)

    @property
    def all(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all if span.name == name]

    def of(self, request_id: str) -> ReadableSpan:
        """The evaluation of one request."""
        (found,) = (span for span in self.named("evaluation") if fact(span, "request_id") == request_id)
        return found

    def below(self, parent: ReadableSpan) -> list[str]:
        """Names of the spans right below one, in the order they began."""
        found = [span for span in self.all if span.parent is not None and span.parent.span_id == parent.context.span_id]
        return [span.name for span in sorted(found, key=lambda span: span.start_time or 0)]


def fact(span: ReadableSpan, name: str) -> Any:
    """What a span says under one of our names."""
    return (span.attributes or {}).get(f"kernelevo.{name}")


@pytest.fixture
def spans() -> Spans:
    return Spans()


async def test_an_evaluation_stands_below_its_call_and_the_call_below_the_caller(
    host: Any, make_request: Any, spans: Spans
) -> None:
    client = await host.start(telemetry=spans.telemetry)
    asked = make_request("passed")
    with spans.provider.get_tracer("a search").start_as_current_span("a search") as above:
        found = await client.evaluate(asked)
        await asyncio.to_thread(_capabilities, host.address, trace.set_span_in_context(above))
    await host.stop()
    assert {span.context.trace_id for span in spans.all} == {above.get_span_context().trace_id}
    (call,) = spans.named(EVALUATE)
    assert call.parent is not None
    assert call.parent.span_id == above.get_span_context().span_id
    assert call.kind is trace.SpanKind.SERVER
    assert dict(call.attributes or {}) == {
        "rpc.system.name": "grpc",
        "rpc.method": EVALUATE,
        "rpc.response.status_code": "OK",
    }
    assert spans.below(call) == ["evaluation"]
    evaluation = spans.of(asked.request_id)
    assert fact(evaluation, "evaluation_id") == fact(evaluation, "answered_from") == found.evaluation_id
    assert fact(evaluation, "verdict") == "passed"
    assert fact(evaluation, "effort") == "full"
    assert fact(evaluation, "language") == "torch"
    assert fact(evaluation, "from_cache") is False
    # The audit waits and runs first, as the problem is new.
    assert spans.below(evaluation) == ["queue", "audit", "queue", "build", "check", "time"]


def _capabilities(address: str, context: Any) -> None:
    """A call of the client for threads, below the span of `context`."""
    from opentelemetry import context as contexts

    token = contexts.attach(context)
    try:
        with EvaluatorClient(address) as client:
            client.get_capabilities()
    finally:
        contexts.detach(token)


async def test_waits_belong_to_who_waited_and_work_to_who_began_it(host: Any, make_request: Any, spans: Spans) -> None:
    client = await host.start(telemetry=spans.telemetry)
    await client.register_problem(Problem(source=PROBLEM))
    first = host.ask(make_request("passed hold"))
    await host.executor.until("started", 1)
    second, third = host.ask(make_request("passed 2")), host.ask(make_request("passed 3"))
    await second.queued()
    await third.queued()
    joined = host.ask(make_request("passed 3"))
    await joined.queued()
    host.executor.release()
    await asyncio.gather(first.task, second.task, third.task, joined.task)
    cached = make_request("passed 3")
    await client.evaluate(cached)
    await host.stop()
    (register,) = spans.named(REGISTER)
    assert spans.below(register) == ["queue", "audit"]
    for one in (first, second, third):
        assert spans.below(spans.of(one.request_id)) == ["queue", "build", "check", "time"]
    began = [fact(spans.of(one.request_id), "evaluation_id") for one in (first, second, third)]
    second_hand = [spans.of(one.request_id) for one in (joined, cached)]
    assert fact(second_hand[0], "answered_from") == began[2]
    assert fact(second_hand[1], "answered_from") in (began[2], fact(second_hand[0], "evaluation_id"))
    for span, from_cache in zip(second_hand, (False, True), strict=True):
        assert fact(span, "from_cache") is from_cache
        assert fact(span, "answered_from") != fact(span, "evaluation_id")
        assert spans.below(span) == []


async def test_failures_are_told_without_what_the_candidate_says(host: Any, make_request: Any, spans: Spans) -> None:
    client = await host.start(telemetry=spans.telemetry)
    secret = "UNHEARD-OF"
    bad, gone, odd = (make_request(script, extra=f"# {secret}\n") for script in ("crashed", "passed fault", "boom"))
    await client.evaluate(bad)
    for one in (gone, odd):
        with pytest.raises(errors.EvaluatorFault):
            await client.evaluate(one)
    with pytest.raises(errors.UnknownProblem):
        await client.evaluate(make_request("passed", problem=None, problem_digest=problem_digest(secret)))
    held = host.ask(make_request("passed hold"))
    await host.executor.until("started", 5)
    await client.cancel_evaluation(request_id=held.request_id)
    await held
    await host.stop()
    # A kernel that fails is what was asked about; that nothing is known of it is an error.
    assert fact(spans.of(bad.request_id), "verdict") == "crashed"
    assert spans.of(bad.request_id).status.status_code is trace.StatusCode.UNSET
    for one in (gone, odd):
        span = spans.of(one.request_id)
        assert fact(span, "reason") == span.status.description == "evaluator_fault"
        assert span.status.status_code is trace.StatusCode.ERROR
    assert [event.name for event in spans.of(gone.request_id).events] == ["executor fault"] * 2
    assert fact(spans.of(held.request_id), "verdict") == "cancelled"
    statuses = [(span.attributes or {})["rpc.response.status_code"] for span in spans.named(EVALUATE)]
    assert statuses == ["OK", "UNAVAILABLE", "UNAVAILABLE", "NOT_FOUND", "OK"]
    told = "".join(span.to_json() for span in spans.all)
    assert "passed" not in told  # the script of a candidate, where it is not its verdict
    assert secret not in told
    assert "the device is gone" not in told


@pytest.mark.parametrize("parent", ["", "00-garbage", f"00-{'0' * 32}-{'0' * 16}-01", "00-" + "f" * 8000])
async def test_a_caller_that_names_no_span_begins_a_trace(host: Any, spans: Spans, parent: str) -> None:
    await host.start(telemetry=spans.telemetry)
    async with grpc.aio.insecure_channel(host.address) as channel:
        call = channel.unary_unary("/kernelevo.evaluator.v1.EvaluatorService/GetCapabilities")
        answer = await call(b"", metadata=(("traceparent", parent), ("baggage", "a=b,,;="), ("x-bin", b"\xff")))
    assert pb.GetCapabilitiesResponse.FromString(answer).api_version
    await host.stop()
    (span,) = spans.all
    assert span.parent is None


async def test_who_is_not_let_in_is_not_traced(host: Any, spans: Spans, folder: Any) -> None:
    file = folder / "tokens.toml"
    add_token(file, "somebody", Quota())
    client = await host.start(telemetry=spans.telemetry, token_file=file)
    with pytest.raises(errors.Unauthenticated):
        await client.get_capabilities()
    await host.stop()
    assert spans.all == ()


def test_a_client_sends_nothing_of_a_trace_where_there_is_none() -> None:
    assert trace_metadata() == ()


class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    """What speaks OTLP at the other end."""

    def __init__(self) -> None:
        self.received: list[Any] = []

    async def Export(self, request: Any, context: Any) -> Any:
        self.received += request.resource_spans
        return trace_service_pb2.ExportTraceServiceResponse()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        server = grpc.aio.server()
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            await server.stop(0)


async def test_spans_of_the_command_reach_a_collector_by_the_standard_variables(
    folder: Path, make_request: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = Receiver()
    async with receiver.serving() as address:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
        with server(folder) as served:
            await served.ready()
            async with AsyncEvaluatorClient(served.address) as client:
                await client.evaluate(make_request("passed"))
            served.process.terminate()
            assert await asyncio.to_thread(served.process.wait, 60) == 0  # while the receiver answers
    (resource,) = {one.resource.SerializeToString(): one.resource for one in receiver.received}.values()
    said = {one.key: one.value.string_value for one in resource.attributes}
    assert said["service.name"] == "kernelevo-evaluator"
    assert said["service.version"] == evaluator_version()
    assert said["deployment.environment.name"] == "test"
    names = [span.name for one in receiver.received for scope in one.scope_spans for span in scope.spans]
    assert {EVALUATE, "evaluation", "queue", "audit"} <= set(names)


async def test_a_collector_that_is_away_does_not_hold_up_the_end(
    host: Any, make_request: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelevo_evaluator.otel.FLUSH_S", 0.2)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "600")
    client = await host.start(telemetry=telemetry.from_environment("1.2.3"))
    found = await client.evaluate(make_request("passed"))
    assert found.verdict is Verdict.PASSED
    async with asyncio.timeout(60):
        await host.stop()


@pytest.mark.parametrize(
    ("variables", "complaint"),
    [
        ({}, None),
        ({"OTEL_SERVICE_NAME": "x"}, None),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, None),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, None),
        ({"OTEL_TRACES_EXPORTER": "pigeon"}, "no exporter 'pigeon'"),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "smoke"}, "'smoke' is no protocol"),
    ],
)
def test_nothing_is_traced_unless_asked_for_and_possible(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], complaint: str | None
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with capture_logs() as logs:
        made = telemetry.from_environment("1")
    assert type(made) is telemetry.Telemetry
    assert made.interceptors() == []
    assert [complaint in str(line) for line in logs] == [True] * (complaint is not None)


def test_an_evaluator_without_the_extra_says_so_and_serves() -> None:
    program = """
import sys
sys.modules["opentelemetry"] = None
from kernelevo_evaluator import server, telemetry
assert type(telemetry.from_environment("1")) is telemetry.Telemetry
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317"},
    )
    assert done.returncode == 0, done.stderr
    assert "install kernelevo[otel]" in done.stdout + done.stderr
