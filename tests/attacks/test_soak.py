"""A short soak; benchmarks/hostile_soak.py runs the long one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from soak import left, soak

from kernelevo_sandbox import open_sandbox


@pytest.mark.parametrize("name", ["bubblewrap", "docker"])
async def test_hostile_programs_leave_nothing(name: str, request: pytest.FixtureRequest) -> None:
    if name == "docker":
        request.getfixturevalue("docker_engine")
    sandbox = open_sandbox(name)
    try:
        before, after, escaped = await soak(sandbox, 20)
    finally:
        await sandbox.close()
    assert escaped == []
    assert left(before, after) == {}
