"""A client in another language, generated from the same .proto: Node, with @grpc/grpc-js."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from scripted_executor import PROBLEM

from kernelevo_api.client import problem_digest
from kernelevo_api.types import Verdict

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CLIENT = Path(__file__).parent / "node_client"
PROTO = Path(__file__).resolve().parents[2] / "proto"

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed; on Debian: apt-get install nodejs"),
    pytest.mark.skipif(
        not (CLIENT / "node_modules").is_dir(), reason="run: npm ci --prefix tests/evaluator/node_client"
    ),
]


@pytest.fixture
async def said(host: Any, folder: Path) -> AsyncIterator[dict[str, Any]]:
    """What the client printed."""
    await host.start()
    (folder / "problem.py").write_text(PROBLEM)
    process = await asyncio.create_subprocess_exec(
        *("node", CLIENT / "client.js", host.address, PROTO, folder / "problem.py"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    yield json.loads(output)


async def test_registers_evaluates_streams_cancels_and_reads_errors(host: Any, said: dict[str, Any]) -> None:
    assert said["digest"] == problem_digest(PROBLEM)
    assert said["verdict"] == "VERDICT_OUTPUT_MISMATCH"
    assert said["stages"][-3:] == ["STAGE_BUILD", "STAGE_CHECK", "STAGE_TIME"]
    assert host.executor.jobs[0].limits.check_time.total_seconds() == 7
    assert said["stopped"]
    assert said["cancelled"] == said["recorded"] == f"VERDICT_{Verdict.CANCELLED.name}"
    assert host.executor.cancelled == ["passed hold"]
    assert said["refused"]["code"] == "INVALID_ARGUMENT"
    assert said["refused"]["reason"] == "INVALID_REQUEST"
    assert said["refused"]["field_violations"][0]["field"] == "request_id"
