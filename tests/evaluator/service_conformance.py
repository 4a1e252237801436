"""What the service promises whichever executor is behind it, as a client sees it. Each check takes one of one lane or more.

Work is counted where it is done: on the lanes, on whatever host they are.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from scripted_executor import PROBLEM

from kernelevo_api.channel import RetryPolicy
from kernelevo_api.client import AsyncEvaluatorClient
from kernelevo_api.errors import EvaluatorFault
from kernelevo_api.types import EvaluateRequest, Problem, Verdict
from kernelevo_evaluator.server import EvaluatorServer
from kernelevo_evaluator.settings import EvaluatorSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from executor_conformance import Subject

    from kernelevo_evaluator.executor import Executor, ExecutorFacts


class Service:
    """A server around an executor, its client, and what the lanes wrote down."""

    def __init__(self, subject: Subject, client: AsyncEvaluatorClient) -> None:
        self.subject = subject
        self.client = client

    def request(self, script: str = "passed", extra: str = "") -> EvaluateRequest:
        job = self.subject.job(script, extra)
        return EvaluateRequest(
            request_id=str(uuid.uuid4()),
            problem=Problem(source=PROBLEM),
            candidate=job.candidate,
            effort=job.effort,
            skip_timing=job.skip_timing,
        )


@asynccontextmanager
async def serving(executor: Executor, folder: Path) -> AsyncIterator[tuple[ExecutorFacts, AsyncEvaluatorClient]]:
    """A server around an executor that was not started, and a client that does not retry."""
    settings = EvaluatorSettings(state_dir=folder / "state", listen=f"unix:{folder}/e.sock", grace_s=0.1)
    found: list[ExecutorFacts] = []
    start = executor.start

    async def noted() -> ExecutorFacts:
        found.append(await start())
        return found[0]

    executor.start = noted  # type: ignore[method-assign]
    server = EvaluatorServer(lambda: executor, settings)
    client = AsyncEvaluatorClient(await server.start(), retry=RetryPolicy(queue_s=0, unavailable_s=0))
    try:
        yield found[0], client
    finally:
        await client.close()
        await server.drain(0.0)


async def one_id_is_carried_out_once(service: Service) -> None:
    client, subject = service.client, service.subject
    asked = service.request("passed hold joined")
    joined = [asyncio.create_task(client.evaluate(asked)) for _ in range(2)]
    await subject.until("started", "passed hold joined")
    joined.append(asyncio.create_task(client.evaluate(asked)))
    subject.gate.touch()
    found = await asyncio.gather(*joined)
    subject.gate.unlink()
    assert found[0].verdict is Verdict.PASSED and found == [found[0]] * 3
    assert await client.evaluate(asked) == found[0], "and is replayed"
    equal = await client.evaluate(service.request("passed hold joined"))
    assert equal.from_cache and equal.evaluation_id != found[0].evaluation_id
    assert (subject.noted("started", "passed hold joined"), subject.noted("ended", "passed hold joined")) == (1, 1)
    recorded = Counter([one.request_id async for one in client.list_evaluations()])
    assert recorded[asked.request_id] == recorded[equal.request_id] == 1


async def what_is_cancelled_ends_on_its_device(service: Service) -> None:
    client, subject = service.client, service.subject
    asked = service.request("passed hold stopped")
    waiting = asyncio.create_task(client.evaluate(asked))
    await subject.until("started", "passed hold stopped")
    stopped, recorded = await client.cancel_evaluation(request_id=asked.request_id)
    # When this returns nothing of it runs any more.
    assert subject.noted("cancelled", "passed hold stopped") == 1
    assert stopped and recorded is not None and recorded.verdict is Verdict.CANCELLED
    assert await waiting == recorded
    assert (await client.evaluate(service.request("passed", "# after"))).verdict is Verdict.PASSED


async def what_nobody_waits_for_ends_on_its_device(service: Service) -> None:
    client, subject = service.client, service.subject
    gone = asyncio.create_task(client.evaluate(service.request("passed hold left")))
    await subject.until("started", "passed hold left")
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    await subject.until("cancelled", "passed hold left")
    assert (await client.evaluate(service.request("passed", "# later"))).verdict is Verdict.PASSED


async def a_fault_is_tried_once_more_and_is_no_verdict(service: Service) -> None:
    client, subject = service.client, service.subject
    asked = service.request("passed fault")
    with pytest.raises(EvaluatorFault, match=subject.fault):
        await client.evaluate(asked)
    assert subject.noted("started", "passed fault") == 2
    assert asked.request_id not in [one.request_id async for one in client.list_evaluations()]
    assert (await client.evaluate(service.request("passed", "# at last"))).verdict is Verdict.PASSED


async def a_wrong_candidate_is_tried_once(service: Service) -> None:
    found = await service.client.evaluate(service.request("output_mismatch"))
    assert found.verdict is Verdict.OUTPUT_MISMATCH
    assert service.subject.noted("started", "output_mismatch") == 1


SERVICE_CHECKS: tuple[Callable[[Service], Awaitable[None]], ...] = (
    one_id_is_carried_out_once,
    what_is_cancelled_ends_on_its_device,
    what_nobody_waits_for_ends_on_its_device,
    a_fault_is_tried_once_more_and_is_no_verdict,
    a_wrong_candidate_is_tried_once,
)
