"""What holds of every executor, wherever its devices are. Each check takes one that is started and has one lane or more.

What the candidates do is `scripted_executor`'s language: the first line says it.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

import pytest
from scripted_executor import PROBLEM, REFUSED, candidate

from kernelevo_api.types import (
    BaselineKind,
    Candidate,
    Effort,
    Language,
    Problem,
    ProblemReport,
    Stage,
    Verdict,
)
from kernelevo_evaluator.executor import Executor, ExecutorFacts, ExecutorFault, Job, ProblemRefused
from kernelevo_evaluator.problem import read_problem

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path


class Subject:
    """An executor under test, and what its lanes wrote down, on whatever host they are."""

    seed = "scripted"
    """Name of the seed that it makes of the problem."""
    refused = REFUSED
    """A problem that an audit refuses, as its output never changes."""
    stages = (Stage.BUILD, Stage.CHECK, Stage.TIME)
    """What is told of an evaluation before what holds it is waited for."""
    fault = "the device is gone"
    """What it says of the fault of its own that the word `fault` brings about."""

    def __init__(self, executor: Executor, facts: ExecutorFacts, log: Path, gate: Path) -> None:
        self.executor = executor
        self.facts = facts
        self.log = log
        self.gate = gate
        """Once this file exists, what holds goes on."""

    def job(self, script: str = "passed", extra: str = "") -> Job:
        return Job(
            evaluation_id=str(uuid.uuid4()),
            problem=read_problem(Problem(source=PROBLEM, name="p"), 1 << 20),
            report=ProblemReport(),
            candidate=Candidate(source=candidate(script, extra)),
            language=Language.TORCH,
            effort=Effort.FULL,
            limits=self.facts.default_limits,
            baseline=BaselineKind.EAGER,
        )

    def noted(self, what: str, script: str) -> int:
        """How often a lane noted this of a script."""
        if not self.log.exists():
            return 0
        return self.log.read_text().splitlines().count(f"{what} {script}")

    async def until(self, what: str, script: str, count: int = 1) -> None:
        async with asyncio.timeout(60):
            while self.noted(what, script) < count:
                await asyncio.sleep(0.02)


def silent(stage: Stage, message: str) -> None:
    pass


async def facts_are_whole(subject: Subject) -> None:
    facts = subject.facts
    assert facts.devices and all(device.healthy for device in facts.devices)
    assert len({device.id for device in facts.devices}) == len(facts.devices)
    assert facts.languages and facts.efforts and facts.toolchain
    assert subject.executor.healthy and 1 <= subject.executor.lanes <= subject.executor.concurrency


async def a_candidate_is_judged(subject: Subject) -> None:
    job = subject.job()
    evaluation = await subject.executor.evaluate(job, silent)
    assert (evaluation.verdict, evaluation.evaluation_id) == (Verdict.PASSED, job.evaluation_id)
    failed = await subject.executor.evaluate(subject.job("output_mismatch"), silent)
    assert failed.verdict is Verdict.OUTPUT_MISMATCH


async def progress_is_told(subject: Subject) -> None:
    told: list[Stage] = []
    job = subject.job("passed hold progress")
    working = asyncio.create_task(subject.executor.evaluate(job, lambda stage, message: told.append(stage)))
    async with asyncio.timeout(60):
        while subject.stages[-1] not in told:
            await asyncio.sleep(0.02)
    subject.gate.touch()
    await working
    subject.gate.unlink()
    assert [stage for stage in told if stage in subject.stages] == list(subject.stages)


async def a_problem_is_audited(subject: Subject) -> None:
    problem = read_problem(Problem(source=PROBLEM, name="p"), 1 << 20)
    report = await subject.executor.audit(problem, subject.facts.default_limits, False, silent)
    assert report.inputs[0].shape == (8,)


async def a_refused_problem_says_why(subject: Subject) -> None:
    problem = read_problem(Problem(source=subject.refused, name="p"), 1 << 20)
    with pytest.raises(ProblemRefused, match="refuses") as raised:
        await subject.executor.audit(problem, subject.facts.default_limits, False, silent)
    assert raised.value.report is not None
    assert "constant_output" in {finding.code for finding in raised.value.report.findings if finding.refuses}
    marked = await subject.executor.audit(problem, subject.facts.default_limits, True, silent)
    assert marked.accepted_with_mark


async def seeds_are_those_of_the_device(subject: Subject) -> None:
    problem = read_problem(Problem(source=PROBLEM, name="p"), 1 << 20)
    seeds, findings = await subject.executor.seeds(problem, subject.facts.default_limits, silent)
    assert [seed.name for seed in seeds] == [subject.seed] and not findings
    assert seeds[0].source and seeds[0].language is not None


async def a_fault_of_its_own_is_no_verdict(subject: Subject) -> None:
    with pytest.raises(ExecutorFault, match=subject.fault):
        await subject.executor.evaluate(subject.job("passed fault"), silent)
    # Whether to try again is the service's to say.
    assert subject.noted("started", "passed fault") == 1
    assert (await subject.executor.evaluate(subject.job(), silent)).verdict is Verdict.PASSED


async def cancelling_ends_the_work_and_frees_the_device(subject: Subject) -> None:
    lanes = subject.executor.lanes
    script = "passed hold cancelled"
    working = [
        asyncio.create_task(subject.executor.evaluate(subject.job(script, f"# {n}"), silent)) for n in range(lanes)
    ]
    await subject.until("started", script, lanes)
    for task in working:
        task.cancel()
    results = await asyncio.gather(*working, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    # Ended before the cancellation was seen.
    assert subject.noted("cancelled", script) == lanes
    async with asyncio.timeout(30):
        done = await asyncio.gather(*(subject.executor.evaluate(subject.job(), silent) for _ in range(lanes)))
    assert [one.verdict for one in done] == [Verdict.PASSED] * lanes


async def a_deadline_frees_the_device_too(subject: Subject) -> None:
    script = "passed hold late"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await subject.executor.evaluate(subject.job(script), silent)
    assert subject.noted("cancelled", script) == subject.noted("started", script)
    assert (await subject.executor.evaluate(subject.job(), silent)).verdict is Verdict.PASSED


async def lanes_are_exclusive(subject: Subject) -> None:
    room = subject.executor.concurrency
    script = "passed hold many"
    working = [
        asyncio.create_task(subject.executor.evaluate(subject.job(script, f"# {n}"), silent)) for n in range(room + 2)
    ]
    await subject.until("started", script, room)
    await asyncio.sleep(0.3)
    assert subject.noted("started", script) == room
    subject.gate.touch()
    done = await asyncio.gather(*working)
    subject.gate.unlink()
    assert len({one.evaluation_id for one in done}) == room + 2
    assert subject.noted("ended", script) == room + 2


CHECKS: tuple[Callable[[Subject], Awaitable[None]], ...] = (
    facts_are_whole,
    a_candidate_is_judged,
    progress_is_told,
    a_problem_is_audited,
    a_refused_problem_says_why,
    seeds_are_those_of_the_device,
    a_fault_of_its_own_is_no_verdict,
    cancelling_ends_the_work_and_frees_the_device,
    a_deadline_frees_the_device_too,
    lanes_are_exclusive,
)
