"""Traces of what is asked and done, where they are wanted: the events that may become spans, and who turns them into some.

`Telemetry` itself traces nothing. `from_environment` returns one that does (`otel.py`, extra `otel`) where OpenTelemetry's own
variables ask for it. Neither sees a source, a token or a client's name. Spans have the metrics' names for verdicts, stages and
reasons.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import grpc.aio

    from kernelevo_api.types import Evaluation
    from kernelevo_evaluator.store import AcceptedRequest

ASKING = ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""Variables any of which asks for traces. Without one nothing is sent, not even to the usual address on this host."""

_log = structlog.get_logger("kernelevo.evaluator")


class Telemetry:
    """Told of what happens, in the context (`contextvars`) of the request that it happens for. This one lets it pass."""

    def interceptors(self) -> list[grpc.aio.ServerInterceptor]:
        """What goes around the calls of the service, behind those that ask who calls."""
        return []

    def evaluation(self, accepted: AcceptedRequest) -> AbstractContextManager[None]:
        """An accepted request is carried out inside."""
        return contextlib.nullcontext()

    def audit(self, problem_digest: str) -> AbstractContextManager[None]:
        """A problem is audited inside."""
        return contextlib.nullcontext()

    def waited(self, seconds: float) -> None:
        """A piece of work left the queue and begins, after so long."""

    def ran(self, evaluation: Evaluation) -> None:
        """Work has ended; its timeline tells when each stage ran."""

    def fault(self) -> None:
        """A fault of the executor's own, retried or not."""

    def evaluated(self, evaluation: Evaluation, answered_from: str) -> None:
        """A request has its evaluation. `answered_from`: id of the evaluation that it is taken from, another's where work was
        joined or the cache answered."""

    def not_evaluated(self, reason: str) -> None:
        """A request ended without an evaluation."""

    def stopped(self) -> None:
        """A request was cancelled, or its client gave it up."""

    async def close(self) -> None:
        """Send what is left, for some seconds at most."""


def from_environment(version: str) -> Telemetry:
    """Traces as OpenTelemetry's variables ask for them. What cannot be had is logged: it never keeps an evaluator from serving.

    Args:
        version: of the evaluator.
    """
    asked = [name for name in ASKING if os.environ.get(name)]
    exporter = os.environ.get(ASKING[0], "").strip().lower()
    if not asked or exporter == "none" or os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return Telemetry()
    try:
        from kernelevo_evaluator.otel import OpenTelemetry

        return OpenTelemetry.exporting(exporter or "otlp", version)
    except ModuleNotFoundError as error:
        _log.warning("no traces: install kernelevo[otel]", asked_by=asked, message=str(error))
    except ValueError as error:
        _log.warning("no traces", asked_by=asked, message=str(error))
    return Telemetry()
