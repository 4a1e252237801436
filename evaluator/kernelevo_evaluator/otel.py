"""Spans by OpenTelemetry: one for each call, below it one for the evaluation, below that its wait and its stages.

The only module of the evaluator that imports `opentelemetry` (extra `otel`). Which exporter, where to, what is sampled and under
which name the evaluator appears is read from the standard OTEL_* variables by OpenTelemetry's own code.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from importlib.metadata import entry_points
from os import environ
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from opentelemetry import propagate, trace
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from kernelevo_api.evaluator.v1 import evaluator_pb2
from kernelevo_evaluator.service import status_name
from kernelevo_evaluator.telemetry import Telemetry

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from datetime import datetime

    from opentelemetry.sdk.trace.export import SpanExporter

    from kernelevo_api.types import Evaluation
    from kernelevo_evaluator.store import AcceptedRequest

FLUSH_S = 5.0
"""How long the last spans may take to be sent; a collector that is away does not hold up the end."""

_PREFIX = "kernelevo."
_SERVICE = evaluator_pb2.DESCRIPTOR.services_by_name["EvaluatorService"].full_name
_GROUP = "opentelemetry_traces_exporter"
_PROTOCOLS = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}
_OURS_TO_MEND = frozenset({"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"})
"""Statuses that OpenTelemetry's conventions count as errors of a server."""


class OpenTelemetry(Telemetry):
    """Turns what it is told into spans of one provider, and ends that with itself."""

    def __init__(self, provider: TracerProvider, exporters: tuple[SpanExporter, ...] = ()) -> None:
        """`exporters` are told to hurry where the provider's own end takes too long."""
        self._provider = provider
        self._exporters = exporters
        self._tracer = provider.get_tracer("kernelevo_evaluator")

    @classmethod
    def exporting(cls, names: str, version: str) -> OpenTelemetry:
        """Spans go where the OTEL_* variables say. `names`: as in OTEL_TRACES_EXPORTER, with commas between them.

        Raises:
            ValueError: there is no such exporter here, or it cannot be made of its variables.
        """
        made = tuple(_exporter(name.strip()) for name in names.split(",") if name.strip())
        own = {"service.name": "kernelevo-evaluator", "service.version": version}
        # What the variables say goes before what we say.
        named = Resource.create({**own, **OTELResourceDetector().detect().attributes})
        provider = TracerProvider(resource=named)
        for exporter in made:
            provider.add_span_processor(BatchSpanProcessor(exporter))
        return cls(provider, made)

    def interceptors(self) -> list[grpc.aio.ServerInterceptor]:
        return [_CallInterceptor(self._tracer)]

    @contextmanager
    def evaluation(self, accepted: AcceptedRequest) -> Iterator[None]:
        request = accepted.request
        attributes = {
            "evaluation_id": accepted.evaluation_id,
            "request_id": accepted.request_id,
            "problem_digest": request.problem_digest,
            "effort": request.effort.value if request.effort is not None else None,
        }
        with self._span("evaluation", attributes):
            yield

    @contextmanager
    def audit(self, problem_digest: str) -> Iterator[None]:
        with self._span("audit", {"problem_digest": problem_digest}):
            yield

    def waited(self, seconds: float) -> None:
        end = time.time_ns()
        self._tracer.start_span("queue", start_time=end - round(seconds * 1e9)).end(end)

    def ran(self, evaluation: Evaluation) -> None:
        for one in evaluation.timeline.stages if evaluation.timeline is not None else ():
            if one.stage is not None and one.start is not None and one.end is not None:
                self._tracer.start_span(one.stage.value, start_time=_ns(one.start)).end(_ns(one.end))

    def fault(self) -> None:
        trace.get_current_span().add_event("executor fault")

    def evaluated(self, evaluation: Evaluation, answered_from: str) -> None:
        _set(
            trace.get_current_span(),
            {
                "verdict": evaluation.verdict.value if evaluation.verdict is not None else None,
                "stage": evaluation.stage.value if evaluation.stage is not None else None,
                "language": evaluation.language.value if evaluation.language is not None else None,
                "effort": evaluation.effort.value if evaluation.effort is not None else None,
                "problem_digest": evaluation.problem_digest or None,
                "from_cache": evaluation.from_cache,
                "answered_from": answered_from or None,
            },
        )

    def not_evaluated(self, reason: str) -> None:
        span = trace.get_current_span()
        _set(span, {"reason": reason})
        # The message may quote the candidate; logs have it.
        span.set_status(trace.StatusCode.ERROR, reason)

    def stopped(self) -> None:
        _set(trace.get_current_span(), {"verdict": "cancelled"})

    async def close(self) -> None:
        ending = asyncio.create_task(asyncio.to_thread(self._provider.shutdown))
        done, _ = await asyncio.wait([ending], timeout=FLUSH_S)
        if not done:
            # Ends the try that is under way, and those that would follow.
            for exporter in self._exporters:
                await asyncio.to_thread(exporter.shutdown)
        await ending

    @contextmanager
    def _span(self, name: str, attributes: dict[str, Any]) -> Iterator[None]:
        # Without what an exception says: it may quote the candidate.
        with self._tracer.start_as_current_span(name, record_exception=False, set_status_on_exception=False) as span:
            _set(span, attributes)
            yield


class _CallInterceptor(grpc.aio.ServerInterceptor):
    """A span around each call of the evaluator's service, below the caller's where its metadata names one."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        details: Any = handler_call_details
        if handler is None or not details.method.startswith(f"/{_SERVICE}/") or handler.request_streaming:
            return handler
        name, read, write = details.method.removeprefix("/"), handler.request_deserializer, handler.response_serializer
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(self._traced(name, handler.unary_stream), read, write)
        return grpc.unary_unary_rpc_method_handler(self._traced(name, handler.unary_unary), read, write)

    def _traced(self, name: str, answer: Callable[[Any, Any], Awaitable[Any]]) -> Callable[..., Any]:
        async def behave(request: Any, context: Any) -> Any:
            metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
            with self._tracer.start_as_current_span(
                name,
                context=propagate.extract(metadata),
                kind=trace.SpanKind.SERVER,
                attributes={"rpc.system.name": "grpc", "rpc.method": name},
                record_exception=False,
                set_status_on_exception=False,
            ) as span:
                status = "CANCELLED"
                try:
                    result = await answer(request, context)
                    status = "OK"
                except Exception:
                    status = status_name(context.code())
                    raise
                finally:
                    span.set_attribute("rpc.response.status_code", status)
                    if status in _OURS_TO_MEND:
                        span.set_status(trace.StatusCode.ERROR, status)
                return result

        return behave


def _exporter(name: str) -> SpanExporter:
    if name == "otlp":
        variables = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
        protocol = next((environ[one] for one in variables if environ.get(one)), "grpc")
        name = _PROTOCOLS.get(protocol.strip().lower(), "")
        if not name:
            raise ValueError(
                f"{protocol!r} is no protocol of OTLP that is spoken here; there are {', '.join(_PROTOCOLS)}"
            )
    found = {one.name: one for one in entry_points(group=_GROUP)}
    if name not in found:
        raise ValueError(f"there is no exporter {name!r} of traces here; installed are {', '.join(sorted(found))}")
    try:
        exporter: SpanExporter = found[name].load()()
    except Exception as error:
        raise ValueError(f"the exporter {name!r} cannot be made: {type(error).__name__}: {error}") from error
    return exporter


def _set(span: trace.Span, attributes: dict[str, Any]) -> None:
    span.set_attributes({f"{_PREFIX}{name}": value for name, value in attributes.items() if value is not None})


def _ns(moment: datetime) -> int:
    return round(moment.timestamp() * 1e6) * 1000
