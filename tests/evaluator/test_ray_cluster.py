"""What becomes of work when workers and whole nodes of a Ray cluster are lost: nothing lost, nothing doubled."""

from __future__ import annotations

import asyncio
import contextlib
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
from scripted_lane import open_lane, open_wide_lane

from kernelevo_api.channel import RetryPolicy
from kernelevo_api.client import AsyncEvaluatorClient
from kernelevo_api.pool import EvaluatorPool
from kernelevo_api.types import Candidate, EvaluateRequest, Evaluation, Problem, Verdict
from kernelevo_evaluator.executor import ExecutorFault, ProblemRefused
from kernelevo_evaluator.problem import read_problem
from kernelevo_evaluator.server import EvaluatorServer
from kernelevo_evaluator.settings import EvaluatorSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

cluster_utils = pytest.importorskip("ray.cluster_utils", reason="the Ray executor needs the ray extra")

import ray  # noqa: E402

from kernelevo_evaluator.ray_executor import cluster as ray_cluster  # noqa: E402
from kernelevo_evaluator.ray_executor import executor as ray_executor  # noqa: E402
from kernelevo_evaluator.ray_executor import losses  # noqa: E402
from kernelevo_evaluator.ray_executor.cluster import Fate  # noqa: E402
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


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "NEWS_S", 0.5)


@pytest.fixture
async def subject(
    request: pytest.FixtureRequest, cluster: Any, notes: tuple[Path, Path], tmp_path: Path
) -> AsyncIterator[Subject]:
    """Three lanes of one call each; or one of two, where the test asks for `wide`."""
    log, gate = notes
    log.unlink(missing_ok=True)
    gate.unlink(missing_ok=True)
    wide = getattr(request, "param", "") == "wide"
    settings = EvaluatorSettings(
        state_dir=tmp_path,
        device="simulated",
        executor="ray",
        ray_address=cluster.address,
        ray_start_s=60,
        ray_lanes=1 if wide else 5,
    )
    executor = RayExecutor(settings, open_wide_lane if wide else open_lane)
    try:
        yield Subject(executor, await executor.start(), log, gate)
    finally:
        gate.touch()
        await executor.close()


async def until_lanes(subject: Subject, count: int) -> None:
    async with asyncio.timeout(60):
        while subject.executor.lanes != count:
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def serving(
    cluster: Any, notes: tuple[Path, Path], tmp_path: Path, **settings: Any
) -> AsyncIterator[AsyncEvaluatorClient]:
    """A client of a service whose lanes are the cluster's; they have noted nothing yet, and hold what is to be held."""
    log, gate = notes
    log.unlink(missing_ok=True)
    gate.unlink(missing_ok=True)
    made = EvaluatorSettings(
        state_dir=tmp_path / "state",
        listen=f"unix:{tmp_path}/e.sock",
        device="simulated",
        executor="ray",
        ray_address=cluster.address,
        **settings,
    )
    server = EvaluatorServer(lambda: RayExecutor(made, open_lane), made)
    client = AsyncEvaluatorClient(await server.start(), retry=RetryPolicy(queue_s=60, unavailable_s=0))
    try:
        yield client
    finally:
        gate.touch()
        await client.close()
        await server.drain(0.0)


async def fate_of(node: Any) -> Fate:
    """What became of a node, once the cluster knows."""
    async with asyncio.timeout(30):
        while (fate := await asyncio.to_thread(ray_cluster.fate_of, node.node_id)) is Fate.THERE:
            await asyncio.sleep(0.05)
    return fate


async def test_a_worker_that_is_lost_is_replaced_and_its_work_carried_out_once_more(subject: Subject) -> None:
    assert subject.executor.lanes == 3 and len(subject.facts.devices) == 3
    # There may be five; of use is what is up.
    assert subject.executor.concurrency == 3
    rooms: list[int] = []
    subject.executor.on_room = lambda: rooms.append(subject.executor.concurrency)
    evaluation = await subject.executor.evaluate(subject.job("passed kill-once"), silent)
    assert evaluation.verdict is Verdict.PASSED
    assert (subject.noted("started", "passed kill-once"), subject.noted("ended", "passed kill-once")) == (2, 1)
    await until_lanes(subject, 3)
    assert {2, 3} <= set(rooms)


@pytest.mark.parametrize("subject", ["wide"], indirect=True)
async def test_who_shares_a_worker_with_what_takes_it_down_is_not_convicted(subject: Subject) -> None:
    assert subject.executor.concurrency == 2
    beside = asyncio.create_task(subject.executor.evaluate(subject.job("passed hold"), silent))
    await subject.until("started", "passed hold")
    bad = asyncio.create_task(subject.executor.evaluate(subject.job("passed kill"), silent))
    async with asyncio.timeout(60):
        while subject.noted("started", "passed hold") + subject.noted("started", "passed kill") < 3:
            await asyncio.sleep(0.02)
    # Were it on the same worker again, it would be lost again; it is alone, before the other or after it.
    subject.gate.touch()
    assert (await bad).verdict is Verdict.CRASHED
    assert (await beside).verdict is Verdict.PASSED
    assert (subject.noted("started", "passed hold"), subject.noted("started", "passed kill")) == (2, 3)


async def test_a_problem_that_takes_two_workers_down_is_refused_and_has_no_seeds(subject: Subject) -> None:
    limits = subject.facts.default_limits
    problem = read_problem(Problem(source=f"{PROBLEM}# kill\n"), 1 << 20)
    with pytest.raises(ProblemRefused, match="2 workers were lost") as refused:
        await subject.executor.audit(problem, limits, False, silent)
    assert refused.value.code == "crashed"
    seeds, (finding,) = await subject.executor.seeds(problem, limits, silent)
    assert not seeds and "2 workers were lost" in finding.message


async def test_a_candidate_that_takes_two_workers_down_is_crashed(subject: Subject) -> None:
    bad = asyncio.create_task(subject.executor.evaluate(subject.job("passed kill"), silent))
    good = [asyncio.create_task(subject.executor.evaluate(subject.job("passed", f"# {n}"), silent)) for n in range(6)]
    evaluation = await bad
    assert evaluation.verdict is Verdict.CRASHED and "2 workers" in evaluation.message
    assert subject.noted("started", "passed kill") == 2, "it had its workers to itself from the start"
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
    third = cluster.add_node(**NODE) if len(cluster.list_all_nodes()) < 3 else cluster.list_all_nodes()[-1]
    async with serving(cluster, notes, tmp_path) as client:
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
        assert await fate_of(third) is Fate.LOST
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
    assert not ray.is_initialized()


async def test_clients_are_served_in_turn_where_fewer_lanes_are_up_than_are_asked_for(
    cluster: Any, notes: tuple[Path, Path], tmp_path: Path
) -> None:
    log, gate = notes
    async with serving(cluster, notes, tmp_path, ray_lanes=12) as client:

        def ask(who: str, script: str, number: int) -> asyncio.Task[Evaluation]:
            source = candidate(f"{script} of {who}", f"# {number}")
            return asyncio.create_task(
                client.evaluate(
                    EvaluateRequest(client_id=who, problem=Problem(source=PROBLEM), candidate=Candidate(source=source))
                )
            )

        async def queue(running: int, queued: int) -> None:
            async with asyncio.timeout(30):
                while True:
                    state = (await client.get_capabilities()).queue
                    assert state is not None and state.running <= 3
                    if (state.running, state.queued) == (running, queued):
                        return
                    await asyncio.sleep(0.02)

        first = await client.register_problem(Problem(source=PROBLEM), with_seeds=True)
        assert [seed.name for seed in first.seeds] == ["scripted"]
        answers = [ask("many", "passed hold", number) for number in range(3)]
        await queue(3, 0)
        answers += [ask("many", "passed", number) for number in range(3, 9)]
        await queue(3, 6)
        answers.append(ask("one", "passed", 0))
        await queue(3, 7)
        gate.touch()
        assert {one.verdict for one in await asyncio.gather(*answers)} == {Verdict.PASSED}
        begun = [line for line in log.read_text().splitlines() if line.startswith("started")]
        # Its turn comes after one of the other's, whatever else waits; lanes write side by side.
        assert "started passed of one" in begun[3:6], begun


async def test_a_worker_that_dies_as_it_is_made_is_told_of_at_once(cluster: Any, tmp_path: Path) -> None:
    settings = EvaluatorSettings(
        state_dir=tmp_path, device="simulated", executor="ray", ray_address=cluster.address, ray_start_s=60
    )
    executor = RayExecutor(settings, _Unreadable())
    try:
        with pytest.raises(ExecutorFault, match=r"no worker could start: .*nothing can be made of this here"):
            await executor.start()
    finally:
        await executor.close()


class _Unreadable:
    """What a worker's constructor fails at: reading its arguments."""

    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    raise ValueError("nothing can be made of this here")


async def test_a_node_that_was_taken_away_is_told_from_one_that_was_lost(cluster: Any) -> None:
    ray.init(address=cluster.address, logging_level="error", log_to_driver=False)
    try:
        node = cluster.add_node(**NODE)
        assert ray_cluster.fate_of(node.node_id) is Fate.THERE
        await asyncio.to_thread(cluster.remove_node, node, allow_graceful=True)
        assert await fate_of(node) is Fate.TAKEN_AWAY
    finally:
        ray.shutdown()


async def test_what_the_cluster_will_never_have_is_said_at_the_start(cluster: Any, tmp_path: Path) -> None:
    settings = EvaluatorSettings(
        state_dir=tmp_path,
        device="simulated",
        executor="ray",
        ray_address=cluster.address,
        ray_accelerator_type="B200",
        ray_start_s=60,
    )
    executor = RayExecutor(settings, open_lane)
    try:
        with pytest.raises(ExecutorFault, match="the Ray cluster has no GPU of type B200"):
            await executor.start()
    finally:
        await executor.close()


def test_services_share_a_cluster_as_several_front_doors_and_leave_nothing_behind(cluster: Any, tmp_path: Path) -> None:
    """The command itself, twice: each service holds its part of the lanes, and a pool of both holds all of them."""
    addresses, processes = [], []
    for name, lanes in (("a", 1), ("b", 2)):
        addresses.append(f"unix:{tmp_path}/{name}.sock")
        command = [sys.executable, "-m", "kernelevo_evaluator", "serve", "--executor", "ray", "--ray-address"]
        command += [cluster.address, "--listen", addresses[-1], "--state-dir", str(tmp_path / name)]
        command += ["--set", "device=simulated", "--set", "simulated_s=0.2", "--set", f"ray_lanes={lanes}"]
        with (tmp_path / f"{name}.log").open("wb") as log:
            processes.append(subprocess.Popen([*command, "--exit-with-parent"], stdout=log, stderr=subprocess.STDOUT))

    def logs() -> str:
        return "".join(path.read_text() for path in sorted(tmp_path.glob("*.log")))

    async def ask() -> tuple[list[int], set[str], list[Evaluation]]:
        for address in addresses:
            async with AsyncEvaluatorClient(address) as client:
                await client.wait_ready(60)
        async with EvaluatorPool.of(addresses) as pool:
            await pool.connect()
            shares = [one.share(pool.device) for one in pool.endpoints]
            found = [one.capabilities for one in pool.endpoints]
            devices = {device.id for one in found if one is not None for device in one.devices}
            report = await pool.register(Problem(source=PROBLEM))
            requests = [
                EvaluateRequest(
                    problem_digest=report.problem_digest, candidate=Candidate(source=candidate(extra=f"# {number}"))
                )
                for number in range(pool.slots)
            ]
            return shares, devices, await asyncio.gather(*map(pool.evaluate, requests))

    try:
        shares, devices, evaluations = asyncio.run(ask())
        assert shares == [1, 2] and len(devices) == 3
        assert [one.verdict for one in evaluations] == [Verdict.PASSED] * 6
        used = {one.environment.device.id for one in evaluations if one.environment and one.environment.device}
        assert used == devices, "every lane of both has had work"
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        codes = [process.wait(60) for process in processes]
    assert codes == [0, 0], logs()


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
