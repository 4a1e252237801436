"""Attacks that need a GPU: on its memory, on what others left there, and on the device itself."""

from __future__ import annotations

import sys
import uuid
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kernelevo_api.client import AsyncEvaluatorClient
from kernelevo_api.types import Candidate, Effort, EvaluateRequest, LimitKind, Limits, Problem, SandboxEnd, Verdict
from kernelevo_evaluator.lanes.gpu import Gpu, NoGpu, find_gpus
from kernelevo_evaluator.lanes.runners import runner_environment, runner_mounts
from kernelevo_sandbox import EndKind, SandboxSpec, open_sandbox
from kernelevo_sandbox import Limits as SandboxLimits

if TYPE_CHECKING:
    from tests.conftest import ServedEvaluator  # type: ignore[import-not-found]

    from kernelevo_api.types import Evaluation

pytestmark = pytest.mark.gpu

GIB = 1 << 30
PROBLEM = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)

def get_inputs():
    return [torch.randn({side}, {side})]
"""
HONEST = """
import torch
from torch import nn

class ModelNew(nn.Module):
    def forward(self, x):
        return torch.clamp(x, min=0)
"""
GREEDY = """
import time
import torch
from torch import nn

class ModelNew(nn.Module):
    def forward(self, x):
        if not hasattr(self, "held"):
            self.held = torch.empty(60 << 30, dtype=torch.uint8, device="cuda")
            time.sleep(3)
        return torch.clamp(x, min=0)
"""
ENDLESS = """
import torch
from torch import nn

class ModelNew(nn.Module):
    def forward(self, x):
        torch.cuda._sleep(1 << 62)
        return torch.clamp(x, min=0)
"""
MARK = 0x5EC2E7A1
LEAVES = f"""
import torch
left = torch.full((8 << 28,), {MARK}, dtype=torch.int32, device="cuda")
torch.cuda.synchronize()
"""
SEARCHES = f"""
import torch
held = [torch.empty(4 << 28, dtype=torch.int32, device="cuda") for _ in range(12)]
print("found", sum(int((one == {MARK}).sum()) for one in held))
"""


@pytest.fixture(scope="module")
def gpu() -> Gpu:
    try:
        return find_gpus()[0]
    except NoGpu as error:
        pytest.skip(f"no GPU: {error}")


async def said(gpu: Gpu, code: str) -> str:
    """What a program with the device says, in a sandbox as runners have it."""
    sandbox = open_sandbox("bubblewrap")
    try:
        process = await sandbox.start(
            SandboxSpec(
                argv=(sys.executable, "-P", "-c", code),
                env=runner_environment(4, gpu),
                limits=SandboxLimits(memory_bytes=16 * GIB, processes=512, tmpfs_bytes=GIB, wall_seconds=120.0),
                mounts=runner_mounts(),
                devices=gpu.nodes,
            )
        )
        ending = await process.wait()
        assert ending.kind is EndKind.EXITED and ending.exit_code == 0, ending
        return ending.stdout.text()
    finally:
        await sandbox.close()


async def test_what_another_left_in_device_memory(gpu: Gpu) -> None:
    """Uninitialised memory holds nothing of the process before. The control: of one's own it does."""
    assert int((await said(gpu, f"{LEAVES}del left\n{SEARCHES}")).split()[-1]) > 0
    await said(gpu, LEAVES)
    assert (await said(gpu, SEARCHES)).split() == ["found", "0"]


async def test_nodes_of_other_gpus(gpu: Gpu) -> None:
    shown = set((await said(gpu, "import os\nprint(*[n for n in os.listdir('/dev') if 'nvidia' in n])")).split())
    assert shown == {node.name for node in gpu.nodes}
    others = {place.name for place in Path("/dev").glob("nvidia[0-9]*")} - {f"nvidia{gpu.minor}"}
    assert not shown & others


async def evaluated(client: AsyncEvaluatorClient, digest: str, source: str, device_memory: int) -> Evaluation:
    limits = Limits(
        device_memory_bytes=device_memory, check_time=timedelta(seconds=20), prepare_time=timedelta(seconds=20)
    )
    return await client.evaluate(
        EvaluateRequest(
            request_id=str(uuid.uuid4()),
            problem_digest=digest,
            candidate=Candidate(source=source),
            effort=Effort.SCREEN,
            limits=limits,
            fresh=True,
        )
    )


async def test_more_device_memory_than_allowed(gpu: Gpu, served_evaluator: ServedEvaluator) -> None:
    async with AsyncEvaluatorClient(served_evaluator.address, client_id="attack") as client:
        guarantees = (await client.get_capabilities()).sandbox.guarantees
        assert [one.holds for one in guarantees if one.name == "device_memory_limit"] == [True]
        digest = (await client.register_problem(Problem(source=PROBLEM.format(side=1024)))).problem_digest
        greedy = await evaluated(client, digest, GREEDY, 20 * GIB)
        assert (greedy.verdict, greedy.limit) == (Verdict.OUT_OF_MEMORY, LimitKind.DEVICE_MEMORY), greedy.message
        assert greedy.sandbox_ending is not None and greedy.sandbox_ending.kind is SandboxEnd.OUT_OF_DEVICE_MEMORY
        assert "20.0 GiB" in greedy.message
        honest = await evaluated(client, digest, HONEST, 20 * GIB)
        assert honest.verdict in (Verdict.PASSED, Verdict.TIMING_DISPUTED), honest.message


async def test_what_the_referee_lends_does_not_count(gpu: Gpu, served_evaluator: ServedEvaluator) -> None:
    """Inputs and outputs of a gigabyte each, many times over, in a sandbox that may have two."""
    async with AsyncEvaluatorClient(served_evaluator.address, client_id="attack") as client:
        digest = (await client.register_problem(Problem(source=PROBLEM.format(side=16384)))).problem_digest
        honest = await evaluated(client, digest, HONEST, 2 * GIB)
        assert honest.verdict in (Verdict.PASSED, Verdict.TIMING_DISPUTED), honest.message


async def test_a_kernel_that_never_ends(gpu: Gpu, served_evaluator: ServedEvaluator) -> None:
    async with AsyncEvaluatorClient(served_evaluator.address, client_id="attack") as client:
        digest = (await client.register_problem(Problem(source=PROBLEM.format(side=1024)))).problem_digest
        endless = await evaluated(client, digest, ENDLESS, 20 * GIB)
        assert endless.verdict is Verdict.TIMEOUT, endless.message
        honest = await evaluated(client, digest, HONEST, 20 * GIB)
        assert honest.verdict in (Verdict.PASSED, Verdict.TIMING_DISPUTED), honest.message
    assert served_evaluator.process.poll() is None, served_evaluator.log_tail()
