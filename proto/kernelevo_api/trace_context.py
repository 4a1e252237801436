"""The caller's trace, as metadata of a call: so that an evaluator's spans stand below the span that asked for them.

Only where the program itself uses OpenTelemetry; nothing is imported and nothing is sent elsewhere.
"""

from __future__ import annotations

import sys


def trace_metadata() -> tuple[tuple[str, str], ...]:
    """The current span by the propagators that the program chose (W3C's `traceparent` unless OTEL_PROPAGATORS says otherwise);
    empty where there is none."""
    if "opentelemetry.trace" not in sys.modules:
        return ()
    from opentelemetry import propagate

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    # Names of gRPC's metadata are lower-case.
    return tuple((name.lower(), value) for name, value in carrier.items())
