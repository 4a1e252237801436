"""The executor with its runners and builds in containers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from core_bench import HONEST, Bench, settings

from kernelevo_api.types import LimitKind, Verdict
from kernelevo_evaluator.local_executor import LocalExecutor
from kernelevo_sandbox import DockerSandbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.asyncio(loop_scope="module")

BUILT = (
    HONEST
    + """
from torch.utils.cpp_extension import load_inline
built = load_inline("built", 'extern "C" int answer() { return 42; }', is_python_module=False, no_implicit_headers=True)
import ctypes
assert ctypes.CDLL(built).answer() == 42
"""
)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def contained(docker_engine: None, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    executor = LocalExecutor(DockerSandbox(), settings(tmp_path_factory.mktemp("docker")))
    try:
        facts = await executor.start()
        assert facts.sandbox.backend == "docker" and all(one.holds for one in facts.sandbox.guarantees)
        yield Bench(executor)
    finally:
        await executor.close()


async def test_an_honest_candidate_is_timed(contained: Bench) -> None:
    evaluation = await contained.judge(HONEST, skip_timing=False)
    assert evaluation.verdict is Verdict.PASSED, evaluation.message
    assert evaluation.environment.sandbox_backend == "docker"


async def test_a_build_runs_in_a_container_of_its_own(contained: Bench) -> None:
    evaluation = await contained.judge(BUILT)
    assert evaluation.verdict is Verdict.PASSED, evaluation.message


async def test_a_limit_is_told(contained: Bench) -> None:
    evaluation = await contained.judge(HONEST + "\nx = bytearray(2 << 30)\n")
    assert evaluation.verdict is Verdict.OUT_OF_MEMORY and evaluation.limit is LimitKind.MEMORY, evaluation.message
    await contained.works()
