"""One local executor in the real sandbox for all tests here."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest
import pytest_asyncio

sys.path.insert(0, str(Path(__file__).parent))

from core_bench import Bench, settings

from kernelevo_evaluator.local_executor import LocalExecutor
from kernelevo_sandbox import BubblewrapSandbox, SandboxUnavailable

if sys.platform != "linux":
    collect_ignore_glob = ["test_*.py"]


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def bench(tmp_path_factory):
    """One executor for the session. Its processes are gone when it is closed."""
    executor = LocalExecutor(BubblewrapSandbox(), settings(tmp_path_factory.mktemp("state")))
    try:
        await executor.start()
    except SandboxUnavailable as error:
        await executor.close()
        pytest.skip(f"no sandbox on this host: {error}")
    try:
        yield Bench(executor)
    finally:
        await executor.close()
        gc.collect()


@pytest.fixture
def count_descriptors():
    """A function that counts the open descriptors of a process, this one unless told."""

    def count(pid="self"):
        gc.collect()
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))

    return count
