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
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _cut,
    ]
    renderer: Any = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    last: list[Any] = (
        [renderer] if console else [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer()]
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


def _cut(_logger: Any, _name: str, event: Any) -> Any:
    for key, value in event.items():
        if isinstance(value, str) and len(value) > _LONGEST_VALUE:
            event[key] = f"{value[:_LONGEST_VALUE]} … {len(value) - _LONGEST_VALUE} more characters"
    return event
