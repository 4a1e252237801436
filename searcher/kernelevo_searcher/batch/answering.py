"""The evaluator's side: requests of a file carried out here, and the answers written as they come.

Nothing but the file is needed. What is answered already is not carried out again, so that a process that was stopped goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from typing import TYPE_CHECKING

from kernelevo_api.errors import PROBLEM_NOT_TAKEN
from kernelevo_api.json import from_json, to_json
from kernelevo_api.pool import NotEvaluated
from kernelevo_api.types import DeviceRequirement, EvaluateRequest, Problem
from kernelevo_searcher.batch.lines import EVALUATIONS_URL, PROBLEMS_URL, BadLine, Request, answer_line, error_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kernelevo_api.pool import EvaluatorPool

__all__ = ["Job", "answer", "read_jobs"]

_PATIENCE_S = 60.0
"""How long one evaluation waits for evaluators that went away."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request, understood: a problem to register, or an evaluation of a candidate for it."""

    custom_id: str
    problem: Problem
    accept_refused: bool = False
    device: DeviceRequirement | None = None
    evaluation: EvaluateRequest | None = None
    """Absent: the problem is only registered."""


def read_jobs(requests: Iterable[Request | BadLine]) -> tuple[list[Job], list[BadLine]]:
    """The requests that can be carried out, and the lines that cannot."""
    jobs, bad = [], []
    for request in requests:
        if isinstance(request, BadLine):
            bad.append(request)
            continue
        try:
            jobs.append(_job(request))
        except ValueError as error:
            bad.append(BadLine(request.number, f"{request.custom_id}: {error}"))
    return jobs, bad


def _job(request: Request) -> Job:
    body = request.body
    if request.url == PROBLEMS_URL:
        device = body.get("device")
        return Job(
            custom_id=request.custom_id,
            problem=from_json(body.get("problem"), Problem),
            accept_refused=body.get("accept_refused") is True,
            device=from_json(device, DeviceRequirement) if device is not None else None,
        )
    if request.url != EVALUATIONS_URL:
        raise ValueError(f"it asks {request.url}, which is no evaluator's")
    evaluation = from_json(body, EvaluateRequest)
    if evaluation.problem is None or evaluation.candidate is None or not evaluation.request_id:
        raise ValueError("it lacks its problem, its candidate or its request_id")
    return Job(
        custom_id=request.custom_id,
        problem=evaluation.problem,
        accept_refused=evaluation.accept_refused_problem,
        device=evaluation.device,
        # The evaluator has the problem by then, under its digest.
        evaluation=dataclasses.replace(evaluation, problem=None),
    )


async def answer(jobs: Iterable[Job], pool: EvaluatorPool, write: Callable[[str], None]) -> None:
    """Carry the jobs out, as many at once as the evaluators take, and write each answer as it comes.

    Args:
        pool: not connected yet.

    Raises:
        NoEvaluator, EvaluatorError: the evaluators are gone, or cannot be used; what was answered is written.
    """
    waiting = list(jobs)
    if not waiting:
        return
    first, *others = dict.fromkeys(job.device for job in waiting)
    await pool.connect(device=first, others=[device for device in others if device is not None])
    known = set[str]()
    for job in [job for job in waiting if job.evaluation is not None]:
        if job.problem.source not in known:
            await pool.register(job.problem, accept_refused=job.accept_refused)
            known.add(job.problem.source)
    for job in [job for job in waiting if job.evaluation is None]:
        write(await _registered(job, pool))
    evaluations = iter([job for job in waiting if job.evaluation is not None])

    async def work() -> None:
        for job in evaluations:
            write(await _evaluated(job, pool))

    watching = asyncio.create_task(pool.watch())
    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(pool.slots):
                tasks.create_task(work())
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from group
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching


async def _registered(job: Job, pool: EvaluatorPool) -> str:
    try:
        report = await pool.register(job.problem, accept_refused=job.accept_refused, with_seeds=True)
    except PROBLEM_NOT_TAKEN as error:
        findings = "; ".join(f"{item.field}: {item.description}" for item in error.violations)
        return error_line(job.custom_id, error.reason.value, f"{error}{f' ({findings})' if findings else ''}")
    assert pool.device is not None
    capabilities = pool.endpoints[0].capabilities
    assert capabilities is not None
    body = {"capabilities": to_json(capabilities), "device": to_json(pool.device), "report": to_json(report)}
    return answer_line(job.custom_id, body)


async def _evaluated(job: Job, pool: EvaluatorPool) -> str:
    assert job.evaluation is not None
    try:
        evaluation = await pool.evaluate(job.evaluation, patience_s=_PATIENCE_S)
    except NotEvaluated as error:
        return error_line(job.custom_id, error.reason, str(error))
    return answer_line(job.custom_id, to_json(evaluation))
