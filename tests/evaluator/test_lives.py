"""What survives the end of a process, and what does not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from scripted_executor import PROBLEM, candidate

from kernelevo_api import errors
from kernelevo_api.channel import RetryPolicy
from kernelevo_api.client import AsyncEvaluatorClient, EvaluatorClient, problem_digest
from kernelevo_api.pool import EvaluatorPool, PoolSettings
from kernelevo_api.types import Candidate, EvaluateRequest, Evaluation, Problem, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.timeout(180)

SERVER = Path(__file__).parent / "scripted_server.py"


class Life:
    """A scripted server in a process of its own, started and ended at will on one state folder."""

    def __init__(self, folder: Path, database_url: str | None = None) -> None:
        self.database_url = database_url
        self.slots = 1
        self.address = f"unix:{folder / 'e.sock'}"
        self.state = folder / "state"
        self.log = folder / "log"
        self.gate = folder / "gate"
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, SERVER, self.address, self.state, self.log],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ
            | {"SCRIPTED_RELEASE": str(self.gate), "KERNELEVO_EVALUATOR_DATABASE_URL": self.database_url or ""}
            | {"SCRIPTED_SLOTS": str(self.slots)},
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith("unix:")

    def end(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    async def until(self, line: str) -> None:
        async with asyncio.timeout(60):
            while line not in self.lines():
                await asyncio.sleep(0.02)


@pytest.fixture
def life(folder: Path) -> Iterator[Life]:
    life = Life(folder)
    try:
        yield life
    finally:
        if life.process is not None:
            life.end(signal.SIGKILL)


def ask(script: str, **fields: Any) -> EvaluateRequest:
    return EvaluateRequest(
        **{
            "request_id": str(uuid.uuid4()),
            "problem": Problem(source=PROBLEM),
            "candidate": Candidate(source=candidate(script)),
            **fields,
        }
    )


async def test_kill_nine_in_the_middle_loses_nothing_and_repeats_nothing(database_url: str | None, life: Life) -> None:
    life.database_url = database_url
    life.start()
    done, running, queued = ask("passed done"), ask("passed hold"), ask("passed queued")
    async with AsyncEvaluatorClient(life.address, retry=RetryPolicy(unavailable_s=60)) as client:
        before = await client.evaluate(done)
        again = ask("passed done")
        cached = await client.evaluate(again)
        assert cached.from_cache
        waiting = [asyncio.create_task(client.evaluate(running))]
        await life.until("started passed hold")
        waiting.append(asyncio.create_task(client.evaluate(queued)))
        async with asyncio.timeout(60):
            while (await client.get_capabilities()).queue.queued == 0:  # type: ignore[union-attr]
                await asyncio.sleep(0.01)
        life.end(signal.SIGKILL)
        life.gate.touch()
        await asyncio.to_thread(life.start)
        # The client's own retries bring both home, under the ids they had.
        found = await asyncio.gather(*waiting)
        assert [one.verdict for one in found] == [Verdict.PASSED, Verdict.PASSED]
        assert await client.evaluate(done) == before
        assert await client.evaluate(again) == cached
        assert len([one async for one in client.list_evaluations()]) == 4
    counted = Counter(line for line in life.lines() if line.startswith(("ended", "audits")))
    assert counted == {
        "ended passed done": 1,
        "ended passed hold": 1,
        "ended passed queued": 1,
        f"audits {before.problem_digest}": 1,
    }


async def test_the_queue_goes_on_by_itself(life: Life) -> None:
    life.start()
    asked = ask("passed hold")
    async with AsyncEvaluatorClient(life.address) as client:
        task = asyncio.create_task(client.evaluate(asked))
        await life.until("started passed hold")
        life.end(signal.SIGKILL)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, errors.EvaluatorError):
            await task
    life.gate.touch()
    life.start()
    await life.until("ended passed hold")
    async with AsyncEvaluatorClient(life.address) as client:
        async with asyncio.timeout(60):
            while not isinstance(found := await client.get_evaluation(request_id=asked.request_id), Evaluation):
                await asyncio.sleep(0.02)
        assert await client.evaluate(asked) == found


async def supervise(life: Life) -> None:
    """Start it again whenever it has ended, as systemd would."""
    while True:
        assert life.process is not None
        if life.process.poll() is not None:
            life.end(signal.SIGKILL)
            await asyncio.to_thread(life.start)
        await asyncio.sleep(0.05)


async def test_what_takes_the_host_down_is_begun_three_times_and_what_ran_beside_it_is_not_blamed(life: Life) -> None:
    life.slots = 2
    life.start()
    supervising = asyncio.create_task(supervise(life))
    settings = PoolSettings(probe_s=0.05, longest_probe_s=0.05)
    try:
        async with EvaluatorPool.of([life.address], settings=settings) as pool, asyncio.timeout(90):
            await pool.connect()
            report = await pool.register(Problem(source=PROBLEM))
            known = {"problem": None, "problem_digest": report.problem_digest}
            deadly, beside = ask("passed die", **known), ask("passed hold", **known)
            waiting = asyncio.create_task(pool.evaluate(beside))
            await life.until("started passed hold")
            killed = asyncio.create_task(pool.evaluate(deadly))
            while life.lines().count("started passed die") < 2:
                await asyncio.sleep(0.02)
            # From now on the deadly one runs alone, before the other or after it.
            life.gate.touch()
            assert (await waiting).verdict is Verdict.PASSED
            evaluation = await killed
            assert evaluation.verdict is Verdict.CRASHED and "lost 3 times" in evaluation.message
            assert life.lines().count("started passed die") == 3
            # Nor is it begun for whoever asks next; only for who asks for a fresh measurement.
            again = await pool.evaluate(ask("passed die", **known))
            assert again.verdict is Verdict.CRASHED and again.evaluation_id != evaluation.evaluation_id
            assert life.lines().count("started passed die") == 3
            fresh = asyncio.create_task(pool.evaluate(ask("passed die", fresh=True, **known)))
            while life.lines().count("started passed die") < 4:
                await asyncio.sleep(0.02)
            assert (await fresh).verdict is Verdict.CRASHED
            assert life.lines().count("started passed die") == 6
    finally:
        supervising.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await supervising


async def test_a_problem_whose_audit_takes_the_host_down_is_refused(life: Life) -> None:
    life.start()
    source = f"{PROBLEM}# die\n"
    supervising = asyncio.create_task(supervise(life))
    try:
        async with AsyncEvaluatorClient(life.address, retry=RetryPolicy(unavailable_s=60)) as client:
            with pytest.raises(errors.ProblemRefused, match="lost 3 times"):
                await client.evaluate(ask("passed", problem=Problem(source=source)), timeout=90)
        assert life.lines().count(f"audits {problem_digest(source)}") == 3
    finally:
        supervising.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await supervising


def test_the_client_of_threads(life: Life) -> None:
    with EvaluatorClient(life.address) as nobody, pytest.raises(errors.Unreachable, match="kernelevo-evaluator serve"):
        nobody.get_capabilities()
    life.start()
    with EvaluatorClient(life.address, client_id="t") as client:
        assert client.wait_ready(60).api_version == "v1"
        report = client.register_problem(Problem(source=PROBLEM))
        seen: list[Any] = []
        asked = ask("passed", problem=None, problem_digest=report.problem_digest)
        evaluation = client.evaluate(asked, on_progress=seen.append, timeout=30)
        assert evaluation.verdict is Verdict.PASSED
        assert seen
        assert client.get_evaluation(request_id=asked.request_id) == evaluation
        assert list(client.list_evaluations(page_size=1)) == [evaluation]
        assert client.cancel_evaluation(evaluation_id=evaluation.evaluation_id) == (False, evaluation)
        with pytest.raises(errors.UnknownEvaluation):
            client.get_evaluation(request_id="x")
        with pytest.raises(errors.DeadlineExceeded):
            client.evaluate(ask("passed hold"), timeout=0.5)
        life.end(signal.SIGKILL)
        life.gate.touch()
        life.start()
        assert client.evaluate(asked) == evaluation


def test_one_state_folder_has_one_server_and_one_socket_too(life: Life, folder: Path) -> None:
    life.start()
    for address, state, words in (
        (f"unix:{folder / 'other.sock'}", life.state, "another evaluator works on"),
        (life.address, folder / "other", "another server listens on"),
    ):
        second = subprocess.run(
            [sys.executable, SERVER, address, state, life.log], capture_output=True, text=True, timeout=60
        )
        assert second.returncode != 0
        assert words in second.stderr
    with EvaluatorClient(life.address) as client:
        client.get_capabilities()


def test_a_socket_left_by_a_killed_server_is_taken_over(life: Life, folder: Path) -> None:
    life.start()
    life.end(signal.SIGKILL)
    assert (folder / "e.sock").exists()
    life.start()
    assert (folder / "e.sock").stat().st_mode & 0o777 == 0o600
    assert life.state.stat().st_mode & 0o777 == 0o700
    life.end(signal.SIGTERM)
    assert not (folder / "e.sock").exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_ends_with_its_parent(folder: Path, number: signal.Signals) -> None:
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import subprocess, sys; print(subprocess.Popen(sys.argv[1:]).wait())",
            *(sys.executable, SERVER, f"unix:{folder / 'e.sock'}", folder / "state", folder / "log"),
            "--exit-with-parent",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    assert parent.stdout.readline().startswith("unix:")
    with EvaluatorClient(f"unix:{folder / 'e.sock'}") as client:
        client.wait_ready(60)
        parent.send_signal(number)
        parent.wait(60)
        end = time.monotonic() + 60
        while (folder / "e.sock").exists():
            assert time.monotonic() < end
            time.sleep(0.02)
    parent.stdout.close()


def test_the_server_imports_neither_torch_nor_openai_nor_triton() -> None:
    code = (
        "import sys, kernelevo_evaluator.server, kernelevo_evaluator.cli, kernelevo_evaluator.doctor, "
        "kernelevo_evaluator.local_executor; "
        "print(sorted({'torch', 'openai', 'triton', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
