"""The Slurm script run as Slurm runs it, on two nodes: its evaluators come into the list, serve, and drain.

Slurm's own commands are at the process boundary: `srun` starts the tasks of two nodes, which are two addresses of this host.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.fleet.conftest import make_certificate
from tests.searcher.scripted_evaluator import PROBLEM
from tests.supervise import children

from kernelevo_api.channel import Tls
from kernelevo_api.pool import Change, EvaluatorPool, Notice, PoolSettings
from kernelevo_api.types import Candidate, DeviceKind, Effort, EvaluateRequest, Problem, Verdict
from kernelevo_evaluator.queue import Quota
from kernelevo_evaluator.tokens import add_token

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SCRIPT = Path(__file__).resolve().parents[2] / "deploy" / "slurm" / "evaluators.sbatch"
PATIENCE_S = 120.0
JOB = "4711"
SRUN = """\
#!/bin/bash
# Starts one task on each of two nodes, and ends with the worst of their ends.
while [[ $1 == --* ]]; do shift; done
for node in 0 1; do
  SLURM_PROCID=$node SLURMD_NODENAME=127.0.0.$((node + 1)) "$@" &
  tasks[node]=$!
done
status=0
for task in "${tasks[@]}"; do wait "$task" || status=$?; done
exit $status
"""
REAL = """\
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x + x)


def get_inputs():
    return [torch.randn(64, 64)]


def get_init_inputs():
    return []
"""
SQUEUE = f"#!/bin/sh\necho {JOB}\n"

pytestmark = [
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates"),
    pytest.mark.skipif(sys.platform != "linux", reason="all of 127/8 is this host on Linux"),
]


class Submitted:
    """A job under way."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.list = folder / "evaluators.txt"
        self.parts = folder / "evaluators.txt.d"
        self.secrets = folder / "secrets"
        self.secrets.mkdir()
        make_certificate(self.secrets, "IP:127.0.0.1", "IP:127.0.0.2")
        self.token = add_token(self.secrets / "tokens.toml", "search", Quota())
        commands = folder / "bin"
        commands.mkdir()
        for name, text in (("srun", SRUN), ("squeue", SQUEUE)):
            (commands / name).write_text(text)
            (commands / name).chmod(0o755)
        (folder / "node").mkdir()
        programs = [str(commands), str(Path(sys.executable).parent), os.environ["PATH"]]
        environment = os.environ | {
            "PATH": os.pathsep.join(programs),
            "SLURM_JOB_ID": JOB,
            "SLURM_TMPDIR": str(folder / "node"),
        }
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                ["bash", SCRIPT, self.list, self.secrets, "--exit-with-parent", *options],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def addresses(self) -> list[str]:
        if not self.list.exists():
            return []
        lines = [line.partition("#")[0].strip() for line in self.list.read_text().splitlines()]
        return [line for line in lines if line]

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not true():
                assert self.process.poll() is None, self.log.read_text()
                await asyncio.sleep(0.05)

    def evaluator(self, node: int) -> int:
        """The process that serves on a node."""
        waiting, found = [self.process.pid], []
        while waiting:
            waiting += (below := children(waiting.pop()))
            for process in below:
                place = Path("/proc", str(process))
                if b"--ready-fd" in (place / "cmdline").read_bytes().split(
                    b"\0"
                ) and f"SLURM_PROCID={node}".encode() in (place / "environ").read_bytes().split(b"\0"):
                    found.append(process)
        # The evaluator itself: what it starts has another command line.
        (process,) = found
        return process

    def pool(self, notices: list[Notice]) -> EvaluatorPool:
        tls = Tls(root_certificates=(self.secrets / "tls.crt").read_bytes())
        quick = PoolSettings(probe_s=0.1, longest_probe_s=0.2, rest_s=0.05, refresh_s=0.2)
        return EvaluatorPool.of(
            [f"file:{self.list}"], tls=tls, token=self.token, settings=quick, on_notice=notices.append
        )

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)


@pytest.fixture
def submit(tmp_path: Path) -> Iterator[Callable[..., Submitted]]:
    """Runs the script with these options for each evaluator."""
    made: list[Submitted] = []

    def start(*options: str) -> Submitted:
        made.append(Submitted(tmp_path, *options))
        return made[-1]

    try:
        yield start
    finally:
        for job in made:
            job.end()


async def test_evaluators_of_two_nodes_are_listed_serve_and_drain(submit: Callable[..., Submitted]) -> None:
    job = submit("--set", "device=simulated", "--set", "simulated_s=0.5")
    await job.until(lambda: len(job.addresses()) == 2)
    assert {address.rpartition(":")[0] for address in job.addresses()} == {"127.0.0.1", "127.0.0.2"}
    notices: list[Notice] = []
    async with job.pool(notices) as pool:
        await pool.connect()
        assert {endpoint.name for endpoint in pool.endpoints} == set(job.addresses())
        report = await pool.register(Problem(source=PROBLEM))

        def ask(number: int) -> asyncio.Task[Verdict]:
            source = f"class ModelNew:\n    x = {number}\n"

            async def asked() -> Verdict:
                request = EvaluateRequest(problem_digest=report.problem_digest, candidate=Candidate(source=source))
                return (await pool.evaluate(request)).verdict

            return asyncio.create_task(asked())

        # A node that is lost leaves the list, and what it held goes to the other.
        first, second = job.addresses()
        work = [ask(number) for number in range(4)]
        while pool.outstanding < 4:
            await asyncio.sleep(0.01)
        os.kill(job.evaluator(1), signal.SIGKILL)
        assert await asyncio.gather(*work) == [Verdict.PASSED] * 4
        await job.until(lambda: job.addresses() == [first])
        assert (Change.LOST, second) in [(notice.change, notice.evaluator) for notice in notices]

        # As Slurm does before the time limit. What runs ends, and the list is empty before the evaluator is.
        last = ask(4)
        while not pool.outstanding:
            await asyncio.sleep(0.01)
        job.process.send_signal(signal.SIGTERM)
        assert await last is Verdict.PASSED
    await asyncio.to_thread(job.process.wait, PATIENCE_S)
    assert job.addresses() == [] and list(job.parts.iterdir()) == []
    assert list((job.folder / "node").iterdir()) == [], "what nodes kept for the job goes with it"
    said = job.log.read_text()
    assert (
        "evaluator on 127.0.0.1 ended with status 0" in said and "evaluator on 127.0.0.2 ended with status 137" in said
    )


async def test_what_a_killed_job_left_in_the_list_goes_with_the_next_one(
    submit: Callable[..., Submitted], tmp_path: Path
) -> None:
    parts = tmp_path / "evaluators.txt.d"
    parts.mkdir()
    (parts / "4000.0").write_text("127.0.0.9:1  # job 4000\n")
    job = submit("--set", "no_such_setting=1")
    # Neither of its own evaluators starts, which is what the job then says.
    assert await asyncio.to_thread(job.process.wait, PATIENCE_S) == 2
    assert job.addresses() == [] and list(parts.iterdir()) == []


@pytest.mark.slow
async def test_candidates_are_evaluated_on_the_processors_of_both_nodes(submit: Callable[..., Submitted]) -> None:
    job = submit("--set", "device=cpu")
    await job.until(lambda: len(job.addresses()) == 2)
    async with job.pool([]) as pool:
        await pool.connect()
        assert pool.device is not None and pool.device.kind is DeviceKind.CPU
        report = await pool.register(Problem(source=REAL))
        request = EvaluateRequest(
            problem_digest=report.problem_digest,
            candidate=Candidate(source=REAL.replace("Model", "ModelNew").replace("x + x", "2 * x")),
            effort=Effort.SCREEN,
        )
        found = await asyncio.gather(*(pool.evaluate(request, preferred=name) for name in job.addresses()))
    assert [one.verdict for one in found] == [Verdict.PASSED] * 2
    job.process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(job.process.wait, PATIENCE_S) == 0
