"""What becomes of work when workers and whole nodes of a Ray cluster are lost: nothing lost, nothing doubled."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from executor_conformance import Subject, silent
from scripted_executor import PROBLEM, candidate
from scripted_lane import open_lane

from kernelevo_api.channel import RetryPolicy
from kernelevo_api.client import AsyncEvaluatorClient
from kernelevo_api.types import Candidate, EvaluateRequest, Problem, Verdict
from kernelevo_evaluator.executor import ExecutorFault
from kernelevo_evaluator.server import EvaluatorServer
from kernelevo_evaluator.settings import EvaluatorSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

cluster_utils = pytest.importorskip("ray.cluster_utils", reason="the Ray executor needs the ray extra")

import ray  # noqa: E402

from kernelevo_evaluator.ray_executor import executor as ray_executor  # noqa: E402
from kernelevo_evaluator.ray_executor.executor import RayExecutor  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
]

NODE = {"num_cpus": 1, "num_gpus": 1, "object_store_memory": 80 << 20}


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    folder = tmp_path_factory.mktemp("notes")
    variables = {
        "SCRIPTED_LOG": str(folder / "log"),
        "SCRIPTED_RELEASE": str(folder / "gate"),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield folder / "log", folder / "gate"


@pytest.fixture(scope="module")
def cluster(notes: tuple[Path, Path]) -> Iterator[Any]:
    """Three nodes of one GPU each, as processes of this host."""
    made = cluster_utils.Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    made.add_node(**NODE)
    made.add_node(**NODE)
    made.wait_for_nodes()
    try:
        yield made
    finally:
        made.shutdown()


@pytest.fixture
async def subject(cluster: Any, notes: tuple[Path, Path], tmp_path: Path) -> AsyncIterator[Subject]:
    log, gate = notes
    log.unlink(missing_ok=True)
    gate.unlink(missing_ok=True)
    settings = EvaluatorSettings(
        state_dir=tmp_path, device="simulated", executor="ray", ray_address=cluster.address, ray_start_s=60
    )
    executor = RayExecutor(settings, open_lane)
    try:
        yield Subject(executor, await executor.start(), log, gate)
    finally:
        gate.touch()
        await executor.close()


async def until_lanes(subject: Subject, count: int) -> None:
    async with asyncio.timeout(60):
        while subject.executor.lanes != count:
            await asyncio.sleep(0.05)


async def test_a_worker_that_is_lost_is_replaced_and_its_work_carried_out_once_more(subject: Subject) -> None:
    assert subject.executor.lanes == 3 and len(subject.facts.devices) == 3
    evaluation = await subject.executor.evaluate(subject.job("passed kill-once"), silent)
    assert evaluation.verdict is Verdict.PASSED
    assert (subject.noted("started", "passed kill-once"), subject.noted("ended", "passed kill-once")) == (2, 1)
    await until_lanes(subject, 3)


async def test_a_candidate_that_takes_two_workers_down_is_crashed(subject: Subject) -> None:
    bad = asyncio.create_task(subject.executor.evaluate(subject.job("passed kill"), silent))
    good = [asyncio.create_task(subject.executor.evaluate(subject.job("passed", f"# {n}"), silent)) for n in range(6)]
    evaluation = await bad
    assert evaluation.verdict is Verdict.CRASHED and "2 workers" in evaluation.message
    assert subject.noted("started", "passed kill") == 2
    assert {one.verdict for one in await asyncio.gather(*good)} == {Verdict.PASSED}
    await until_lanes(subject, 3)


@pytest.mark.slow
async def test_a_worker_that_hears_nothing_is_killed_to_free_its_device(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_executor, "STOP_S", 0.5)
    frozen = asyncio.create_task(subject.executor.evaluate(subject.job("passed freeze"), silent))
    await subject.until("started", "passed freeze")
    frozen.cancel()
    with pytest.raises(asyncio.CancelledError):
        await frozen
    await until_lanes(subject, 3)
    done = await asyncio.gather(*(subject.executor.evaluate(subject.job("passed", f"# {n}"), silent) for n in range(3)))
    assert {one.verdict for one in done} == {Verdict.PASSED}


async def test_a_node_that_is_lost_in_the_middle_loses_and_doubles_nothing(
    cluster: Any, notes: tuple[Path, Path], tmp_path: Path
) -> None:
    """Through the service and its store, as a client sees it."""
    log, gate = notes
    log.unlink(missing_ok=True)
    gate.unlink(missing_ok=True)
    third = cluster.add_node(**NODE) if len(cluster.list_all_nodes()) < 3 else cluster.list_all_nodes()[-1]
    settings = EvaluatorSettings(
        state_dir=tmp_path / "state",
        listen=f"unix:{tmp_path}/e.sock",
        device="simulated",
        executor="ray",
        ray_address=cluster.address,
    )
    server = EvaluatorServer(lambda: RayExecutor(settings, open_lane), settings)
    client = AsyncEvaluatorClient(await server.start(), retry=RetryPolicy(queue_s=60, unavailable_s=0))
    try:
        assert (await client.get_capabilities()).queue.lanes == 3  # type: ignore[union-attr]

        def request(number: int, script: str) -> EvaluateRequest:
            return EvaluateRequest(
                request_id=str(uuid.uuid4()),
                problem=Problem(source=PROBLEM),
                candidate=Candidate(source=candidate(script, f"# {number}")),
            )

        requests = [request(number, "passed hold") for number in range(3)]
        requests += [request(number, "passed") for number in range(3, 12)]
        answers = [asyncio.create_task(client.evaluate(one)) for one in requests]
        async with asyncio.timeout(60):
            while not log.exists() or log.read_text().splitlines().count("started passed hold") < 3:
                await asyncio.sleep(0.02)
        await asyncio.to_thread(cluster.remove_node, third, allow_graceful=False)
        async with asyncio.timeout(30):
            while (await client.get_capabilities()).queue.lanes != 2:  # type: ignore[union-attr]
                await asyncio.sleep(0.1)
        # What it held begins anew elsewhere once a lane is free.
        gate.touch()
        found = await asyncio.gather(*answers)
        assert [one.verdict for one in found] == [Verdict.PASSED] * 12
        assert [one.request_id for one in found] == [one.request_id for one in requests]
        recorded = [one async for one in client.list_evaluations()]
        assert Counter(one.request_id for one in recorded) == Counter(one.request_id for one in requests)
        lines = Counter(log.read_text().splitlines())
        assert lines["ended passed hold"] == 3 and lines["ended passed"] == 9
        assert lines["started passed hold"] == 4
        # The cluster grows again, and so does the service, by itself.
        cluster.add_node(**NODE)
        async with asyncio.timeout(60):
            while (await client.get_capabilities()).queue.lanes != 3:  # type: ignore[union-attr]
                await asyncio.sleep(0.1)
    finally:
        gate.touch()
        await client.close()
        await server.drain(0.0)
    assert not ray.is_initialized()


async def test_what_the_cluster_will_never_have_is_said_at_the_start(cluster: Any, tmp_path: Path) -> None:
    settings = EvaluatorSettings(
        state_dir=tmp_path,
        device="simulated",
        executor="ray",
        ray_address=cluster.address,
        ray_accelerator_type="B200",
        ray_start_s=2,
    )
    executor = RayExecutor(settings, open_lane)
    try:
        with pytest.raises(ExecutorFault, match="no GPU of the cluster was free within 2 s"):
            await executor.start()
    finally:
        await executor.close()


def test_the_command_serves_a_cluster_and_leaves_nothing_behind(cluster: Any, tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/e.sock"
    command = [sys.executable, "-m", "kernelevo_evaluator", "serve", "--executor", "ray", "--ray-address"]
    command += [cluster.address, "--listen", address, "--state-dir", str(tmp_path / "state")]
    command += ["--set", "device=simulated", "--set", "simulated_s=0", "--exit-with-parent"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:

        async def ask() -> Verdict:
            async with AsyncEvaluatorClient(address) as client:
                capabilities = await client.wait_ready(60)
                assert capabilities.queue is not None and capabilities.queue.lanes == 3
                assert len({device.id for device in capabilities.devices}) == 3
                request = EvaluateRequest(problem=Problem(source=PROBLEM), candidate=Candidate(source=candidate()))
                return (await client.evaluate(request)).verdict

        assert asyncio.run(ask()) is Verdict.PASSED, (tmp_path / "log").read_text()
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
    assert code == 0, (tmp_path / "log").read_text()


def test_without_a_cluster_it_says_so(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "kernelevo_evaluator",
        "serve",
        "--executor",
        "ray",
        "--ray-address",
        "127.0.0.1:1",
    ]
    command += ["--listen", f"unix:{tmp_path}/e.sock", "--state-dir", str(tmp_path / "state")]
    done = subprocess.run(
        [*command, "--set", "device=simulated"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1 and "no Ray cluster answers" in done.stderr
