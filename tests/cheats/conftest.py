"""One warm executor for each device."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

if sys.platform != "linux":
    collect_ignore_glob = ["test_*.py"]
else:
    sys.path.insert(0, str(Path(__file__).parent))
    from bench import bench

    from kernelevo_sandbox import SandboxUnavailable

    if TYPE_CHECKING:
        from collections.abc import AsyncIterator

        from bench import Bench

    async def _bench(device: str, folder: Path) -> AsyncIterator[Bench]:
        try:
            async with bench(device, folder) as judge:
                yield judge
        except SandboxUnavailable as error:
            pytest.skip(f"no sandbox on this host: {error}")
        gc.collect()

    @pytest_asyncio.fixture(loop_scope="session", scope="session")
    async def cpu_bench(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
        async for judge in _bench("cpu", tmp_path_factory.mktemp("cpu")):
            yield judge

    @pytest_asyncio.fixture(loop_scope="session", scope="session")
    async def gpu_bench(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
        torch = pytest.importorskip("torch")
        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")
        async for judge in _bench("gpu", tmp_path_factory.mktemp("gpu")):
            yield judge
