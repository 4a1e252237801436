"""What a line of the log holds, and what it never does."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import sys
import structlog
from kernelevo_evaluator.logs import configure
from kernelevo_evaluator.settings import load_settings

configure(load_settings({"log_format": sys.argv[1]}).settings)
log = structlog.get_logger("test")

def fail(token):
    raise RuntimeError("broken")

try:
    fail("a-" + "secret")
except RuntimeError:
    log.exception("call failed", request_id="r1")

if sys.argv[1] == "json":
    from opentelemetry.sdk.trace import TracerProvider
    with TracerProvider().get_tracer("t").start_as_current_span("s") as span:
        log.info("inside", expected=format(span.get_span_context().trace_id, "032x"))
"""


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_traceback_tells_where_and_not_with_what(form: str) -> None:
    done = subprocess.run([sys.executable, "-P", "-c", PROGRAM, form], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "broken" in done.stderr
    assert "fail" in done.stderr
    assert "a-secret" not in done.stderr
    if form == "json":
        failed, inside = (json.loads(line) for line in done.stderr.splitlines())
        assert failed["request_id"] == "r1"
        assert failed["level"] == "error"
        assert "trace_id" not in failed
        assert inside["trace_id"] == inside["expected"]
        assert len(inside["span_id"]) == 16
