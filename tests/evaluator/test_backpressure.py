"""A queue that is bounded and fair, and what a client hears of it. Counts work, not seconds."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from scripted_executor import PROBLEM

from kernelevo_api import errors
from kernelevo_api.channel import RetryPolicy
from kernelevo_api.client import problem_digest
from kernelevo_api.types import (
    Problem,
)

pytestmark = pytest.mark.timeout(120)

DIGEST = problem_digest(PROBLEM)


class TestQueue:
    async def test_full_is_refused_at_once_with_a_delay(self, host: Any, make_request: Any) -> None:
        client = await host.start(queue_capacity=2, queue_capacity_per_client=2)
        await client.register_problem(Problem(source=PROBLEM))
        running = host.ask(make_request("passed hold"))
        await host.executor.until("started", 1)
        waiting = [host.ask(make_request(f"passed w{n}")) for n in range(2)]
        for one in waiting:
            await one.queued()
        assert (await client.get_capabilities()).queue.queued == 2
        with pytest.raises(errors.QueueFull) as caught:
            await client.evaluate(make_request("passed late"))
        assert caught.value.retry_delay is not None
        assert timedelta(seconds=1) <= caught.value.retry_delay <= timedelta(seconds=60)
        # A client with patience gets through under the same id once there is room.
        late = make_request("passed late")
        patient = asyncio.create_task(host.client(retry=RetryPolicy()).evaluate(late))
        host.executor.release()
        await asyncio.gather(running.task, *(one.task for one in waiting))
        assert (await patient).request_id == late.request_id
        assert sorted(host.executor.started) == ["passed hold", "passed late", "passed w0", "passed w1"]

    async def test_a_client_has_a_share_and_takes_turns(self, host: Any, make_request: Any) -> None:
        client = await host.start(queue_capacity=8, queue_capacity_per_client=3)
        await client.register_problem(Problem(source=PROBLEM))
        asked = [host.ask(make_request("passed hold", client_id="a"))]
        await host.executor.until("started", 1)
        for name in ("a1", "a2", "a3", "b1", "c1"):
            asked.append(host.ask(make_request(f"passed {name}", client_id=name[0])))
            await asked[-1].queued()
        with pytest.raises(errors.QueueFull, match="this client's share"):
            await client.evaluate(make_request("passed a4", client_id="a"))
        host.executor.release()
        await asyncio.gather(*(one.task for one in asked))
        order = [script.removeprefix("passed ") for script in host.executor.started]
        assert order == ["hold", "a1", "b1", "c1", "a2", "a3"]

    async def test_queued_requests_hear_how_many_are_ahead(self, host: Any, make_request: Any) -> None:
        client = await host.start()
        await client.register_problem(Problem(source=PROBLEM))
        first = host.ask(make_request("passed hold"))
        await host.executor.until("started", 1)
        second = host.ask(make_request("passed 1"))
        assert (await second.queued()).queue_position == 0
        third = host.ask(make_request("passed 2"))
        assert (await third.queued()).queue_position == 1
        host.executor.release()
        await asyncio.gather(first.task, second.task, third.task)
        assert 0 in [one.queue_position for one in third.seen]
