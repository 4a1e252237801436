"""What holds of every executor, and of the service around it, over the one of this host: real candidates, referee and runners.

Without a sandbox, so that candidates themselves can write down what becomes of them, where those of a scripted lane do.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent / "core"))

from core_bench import settings
from executor_conformance import CHECKS, Subject
from scripted_executor import PROBLEM
from service_conformance import SERVICE_CHECKS, Service, serving
from tests.supervise import children

from kernelevo_api.types import BaselineKind, Candidate, Effort, Language, Problem, ProblemReport, Stage
from kernelevo_evaluator.executor import Job
from kernelevo_evaluator.local_executor import LocalExecutor
from kernelevo_evaluator.problem import read_problem
from kernelevo_sandbox import NoSandbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

if sys.platform != "linux":
    pytest.skip("the evaluator runs on Linux", allow_module_level=True)

CANDIDATE = """\
import os, time
import torch
from torch import nn

def note(what):
    with open({log!r} + ".pids", "a") as log:
        log.write(f"{{os.getpid()}} {{what}} {script}\\n")
    with open({log!r}, "a") as log:
        log.write(f"{{what}} {script}\\n")

note("started")
while {hold} and not os.path.exists({gate!r}):
    time.sleep(0.02)

class ModelNew(nn.Module):
    def forward(self, x):
        if {slow}:
            note("called")
            time.sleep(0.2)
        return x + {step}
{extra}
note("ended")
"""


class LocalSubject(Subject):
    """Writes real candidates for what the checks ask for."""

    seed = "inductor"
    refused = PROBLEM.replace("return x + 1", "return torch.zeros(size)")
    stages = (Stage.BUILD,)
    fault = "referee"

    def __init__(self, executor: LocalExecutor, facts: object, log: Path, gate: Path, report: ProblemReport) -> None:
        super().__init__(executor, facts, log, gate)  # type: ignore[arg-type]
        self._report = report
        self._killing = asyncio.create_task(asyncio.sleep(0))

    def job(self, script: str = "passed", extra: str = "") -> Job:
        words = script.split()
        self._killing.cancel()
        if "fault" in words:
            self._killing = asyncio.create_task(self._kill_referee(script))
        source = CANDIDATE.format(
            log=str(self.log),
            gate=str(self.gate),
            script=script,
            hold="hold" in words,
            slow="fault" in words,
            step=1 if words[0] == "passed" else 2,
            extra=extra,
        )
        return Job(
            evaluation_id=str(uuid.uuid4()),
            problem=read_problem(Problem(source=PROBLEM, name="p"), 1 << 20),
            report=self._report,
            candidate=Candidate(source=source),
            language=Language.TORCH,
            effort=Effort.SCREEN,
            limits=self.facts.default_limits,
            baseline=BaselineKind.EAGER,
            skip_timing=True,
        )

    def noted(self, what: str, script: str) -> int:
        if what != "cancelled":
            return super().noted(what, script)
        # Those that began, did not come to an end, and are no more.
        return sum(not Path(f"/proc/{pid}").exists() for pid in self._processes("started", script))

    def _processes(self, what: str, script: str) -> set[str]:
        """Which of them noted this of a script."""
        noted = Path(f"{self.log}.pids")
        lines = noted.read_text().splitlines() if noted.exists() else []
        return {pid for pid, rest in (line.split(" ", 1) for line in lines) if rest == f"{what} {script}"}

    async def _kill_referee(self, script: str) -> None:
        """Each time that it has another runner's candidate called, until the next job is written."""
        seen: set[str] = set()
        while True:
            called = self._processes("called", script)
            if called - seen:
                _kill_referees()
            seen |= called
            await asyncio.sleep(0.02)


def _kill_referees() -> None:
    for pid in children(os.getpid()):
        with contextlib.suppress(OSError):
            if b"kernelevo_evaluator.referee" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service() -> AsyncIterator[Service]:
    # Not tmp_path: a Unix socket's path has little room.
    with tempfile.TemporaryDirectory(prefix="ke") as name:
        folder = Path(name)
        executor = LocalExecutor(NoSandbox(), replace(settings(folder / "state"), device="cpu"))
        async with serving(executor, folder) as (facts, client):
            problem = read_problem(Problem(source=PROBLEM, name="p"), 1 << 20)
            report = await executor.audit(problem, facts.default_limits, False, lambda stage, message: None)
            yield Service(LocalSubject(executor, facts, folder / "log", folder / "gate", report), client)


pytestmark = pytest.mark.asyncio(loop_scope="module")


def nothing_noted(subject: Subject) -> None:
    for path in (subject.gate, subject.log, Path(f"{subject.log}.pids")):
        path.unlink(missing_ok=True)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_executor(check: Callable[[Subject], Awaitable[None]], service: Service) -> None:
    nothing_noted(service.subject)
    await check(service.subject)


@pytest.mark.parametrize("check", SERVICE_CHECKS, ids=lambda check: check.__name__)
async def test_service(check: Callable[[Service], Awaitable[None]], service: Service) -> None:
    nothing_noted(service.subject)
    await check(service)
