"""Real candidates on a real lane of a Ray cluster: sandbox, referee and warm runners live in the worker, and end with it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

sys.path.insert(0, str(Path(__file__).parent / "core"))

from core_bench import HONEST, PROBLEM
from tests.supervise import children

from kernelevo_api.channel import RetryPolicy
from kernelevo_api.client import AsyncEvaluatorClient
from kernelevo_api.types import (
    Candidate,
    DeviceKind,
    Effort,
    EvaluateRequest,
    Evaluation,
    Problem,
    Progress,
    Stage,
    Verdict,
)
from kernelevo_evaluator.executor import LaneState
from kernelevo_evaluator.server import EvaluatorServer
from kernelevo_evaluator.settings import EvaluatorSettings
from kernelevo_sandbox import BubblewrapSandbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

ray = pytest.importorskip("ray", reason="the Ray executor needs the ray extra")

from kernelevo_evaluator.ray_executor.executor import RayExecutor  # noqa: E402

if sys.platform != "linux":
    pytest.skip("the evaluator runs on Linux", allow_module_level=True)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"),
]

PATIENCE_S = 100.0
WRONG = HONEST.replace("min=0", "min=0.1")
HANGS = HONEST.replace("return", "import time; time.sleep(0 if self.training else 600)\n        return")


def below(pid: int) -> set[int]:
    """Processes that one started, and theirs."""
    found, waiting = set(), [pid]
    while waiting:
        waiting += (new := children(waiting.pop()))
        found |= set(new)
    return found


class Service:
    """The service over a cluster of this host with one GPU in name."""

    def __init__(self, executor: RayExecutor, client: AsyncEvaluatorClient) -> None:
        self.executor = executor
        self.client = client

    def request(self, source: str) -> EvaluateRequest:
        return EvaluateRequest(
            request_id=str(uuid.uuid4()),
            problem=Problem(source=PROBLEM),
            candidate=Candidate(source=source),
            effort=Effort.SCREEN,
        )

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not true():
                await asyncio.sleep(0.05)

    def workers(self) -> set[int]:
        """Processes of the cluster that hold a GPU."""
        return {
            pid for pid in below(os.getpid()) if b"ray::Worker" in (Path("/proc") / str(pid) / "cmdline").read_bytes()
        }

    async def hangs(self) -> tuple[asyncio.Task[Evaluation], EvaluateRequest]:
        """A candidate that is under way on the device and does not end."""
        at = asyncio.Event()

        def told(progress: Progress) -> None:
            if progress.stage is Stage.PREPARE:
                at.set()

        request = self.request(HANGS)
        task = asyncio.create_task(self.client.evaluate(request, on_progress=told))
        async with asyncio.timeout(PATIENCE_S):
            await at.wait()
        return task, request


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    sandbox = BubblewrapSandbox()
    try:
        if not all(one.holds for one in await sandbox.probe() if one.essential):
            pytest.skip("this host does not isolate candidates")
    finally:
        await sandbox.close()
    folder = tmp_path_factory.mktemp("ray")
    settings = EvaluatorSettings(
        listen=f"unix:{folder}/e.sock", state_dir=folder / "state", device="cpu", executor="ray", ray_lanes=1
    )
    executor = RayExecutor(settings)
    server = EvaluatorServer(lambda: executor, settings)
    client = AsyncEvaluatorClient(await server.start(), retry=RetryPolicy(queue_s=60, unavailable_s=0))
    try:
        yield Service(executor, client)
    finally:
        await client.close()
        await server.drain(0.0)
    assert not ray.is_initialized()


async def test_a_candidate_is_built_checked_and_timed_on_the_workers_host(service: Service) -> None:
    capabilities = await service.client.get_capabilities()
    (device,) = capabilities.devices
    assert device.kind is DeviceKind.CPU and device.cpus and device.id.endswith("/cpu0")
    assert capabilities.sandbox is not None and capabilities.sandbox.backend == "bubblewrap"
    assert all(one.holds for one in capabilities.sandbox.guarantees if one.essential)
    told: list[Stage | None] = []
    passed = await service.client.evaluate(service.request(HONEST), on_progress=lambda one: told.append(one.stage))
    assert passed.verdict is Verdict.PASSED and passed.timing is not None and passed.timing.speedup is not None
    assert passed.environment is not None and passed.environment.sandbox_backend == "bubblewrap"
    assert passed.environment.device == device
    assert Stage.CHECK in told
    wrong = await service.client.evaluate(service.request(WRONG))
    assert wrong.verdict is Verdict.OUTPUT_MISMATCH
    # Runners stay warm in the worker between candidates, as the metrics tell.
    await service.until(lambda: service.executor.warm_runners.get(device.id, 0) > 0)
    await service.until(lambda: service.executor.lane_states.get(device.id) is LaneState.IDLE)


async def test_what_a_killed_worker_ran_ends_with_it(service: Service) -> None:
    task, request = await service.hangs()
    (worker,) = service.workers()
    ran = below(worker)
    assert ran
    os.kill(worker, signal.SIGKILL)
    await service.until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in ran))
    # It is carried out once more, on the worker that took its place; cancelling frees that one too.
    await service.until(lambda: service.executor.lanes == 1 and worker not in service.workers())
    await service.client.cancel_evaluation(request_id=request.request_id)
    assert (await task).verdict is Verdict.CANCELLED
    passed = await service.client.evaluate(service.request(HONEST + "\n# again"))
    assert passed.verdict is Verdict.PASSED
