"""Logs: one line an event on stderr, for people on a terminal and as JSON elsewhere. Never a token, never a source."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

import structlog

if TYPE_CHECKING:
    from kernelevo_evaluator.settings import EvaluatorSettings

_LONGEST_VALUE = 2000


def configure(settings: EvaluatorSettings) -> None:
    """Send what structlog and the standard library say to stderr, in the format of the settings."""
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    console = settings.log_format == "console" or (settings.log_format == "auto" and sys.stderr.isatty())
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        _trace,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _cut,
    ]
    # Tracebacks without the values of variables: those may be sources and tokens.
    plain = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    renderer: Any = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
    )
    last: list[Any] = (
        [renderer] if console else [structlog.processors.ExceptionRenderer(plain), structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def _trace(_logger: Any, _name: str, event: Any) -> Any:
    """Names the span that a line belongs to, where there are spans."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is not None:
        found = trace.get_current_span().get_span_context()
        if found.is_valid:
            event["trace_id"], event["span_id"] = f"{found.trace_id:032x}", f"{found.span_id:016x}"
    return event


def _cut(_logger: Any, _name: str, event: Any) -> Any:
    for key, value in event.items():
        if isinstance(value, str) and len(value) > _LONGEST_VALUE:
            event[key] = f"{value[:_LONGEST_VALUE]} … {len(value) - _LONGEST_VALUE} more characters"
    return event
