"""Work ends when it is cancelled, when nobody waits for it, and when the server does. Counts work, not seconds."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from scripted_executor import PROBLEM, ScriptedExecutor

from kernelevo_api import errors
from kernelevo_api.client import problem_digest
from kernelevo_api.types import (
    Problem,
    Stage,
    Verdict,
)

pytestmark = pytest.mark.timeout(120)

DIGEST = problem_digest(PROBLEM)


class TestCancel:
    async def test_stops_what_runs_and_returns_when_it_is_gone(self, host: Any, make_request: Any) -> None:
        client = await host.start()
        asked = make_request("passed hold")
        task = host.ask(asked)
        await host.executor.until("started", 1)
        stopped, evaluation = await client.cancel_evaluation(request_id=asked.request_id)
        assert host.executor.cancelled == ["passed hold"]
        assert stopped
        assert evaluation.verdict is Verdict.CANCELLED
        assert (await task) == evaluation
        assert await client.evaluate(asked) == evaluation
        assert await client.cancel_evaluation(request_id=asked.request_id) == (False, evaluation)
        host.executor.release()
        assert (await client.evaluate(make_request("passed next"))).verdict is Verdict.PASSED

    async def test_what_is_queued_never_starts(self, host: Any, make_request: Any) -> None:
        client = await host.start()
        first = host.ask(make_request("passed hold"))
        await host.executor.until("started", 1)
        asked = make_request("passed queued")
        task = host.ask(asked)
        await task.queued()
        assert (await client.cancel_evaluation(request_id=asked.request_id))[0]
        assert (await task).verdict is Verdict.CANCELLED
        host.executor.release()
        await first
        assert host.executor.started == ["passed hold"]

    async def test_detaches_one_and_the_work_goes_on_for_the_other(self, host: Any, make_request: Any) -> None:
        client = await host.start()
        one, two = (host.ask(make_request("passed hold")) for _ in range(2))
        for asked in (one, two):
            await asked.at(Stage.TIME)
        stopped, evaluation = await client.cancel_evaluation(request_id=one.request_id)
        assert not stopped
        assert evaluation.verdict is Verdict.CANCELLED
        assert host.executor.cancelled == []
        host.executor.release()
        assert (await two).verdict is Verdict.PASSED
        assert (await one).verdict is Verdict.CANCELLED
        assert host.executor.started == ["passed hold"]

    async def test_anothers_request_is_not_ours_to_cancel(self, host: Any, make_request: Any) -> None:
        client = await host.start()
        asked = make_request("passed hold", client_id="a")
        task = host.ask(asked, client)
        await host.executor.until("started", 1)
        with pytest.raises(errors.UnknownEvaluation):
            await host.client(client_id="b").cancel_evaluation(request_id=asked.request_id)
        host.executor.release()
        assert (await task).verdict is Verdict.PASSED

    async def test_an_unknown_id(self, host: Any) -> None:
        client = await host.start()
        for call in (client.cancel_evaluation, client.get_evaluation):
            with pytest.raises(errors.UnknownEvaluation):
                await call(evaluation_id="nothing")


class TestGoingAway:
    async def test_back_within_grace_finds_the_same_run(self, host: Any, make_request: Any) -> None:
        client = await host.start(grace_s=30)
        asked = make_request("passed hold")
        task = host.ask(asked)
        await host.executor.until("started", 1)
        await task.gone()
        again = host.ask(asked, client)
        await again.at(Stage.TIME)
        host.executor.release()
        assert (await again).verdict is Verdict.PASSED
        assert host.executor.started == ["passed hold"]

    async def test_beyond_grace_the_work_is_stopped_and_the_id_may_be_sent_again(
        self, host: Any, make_request: Any
    ) -> None:
        client = await host.start(grace_s=0.05)
        asked = make_request("passed hold")
        other = host.client()
        task = host.ask(asked, other)
        await host.executor.until("started", 1)
        await other.close()
        await task.gone()
        await host.executor.until("cancelled", 1)
        # To cancel what is being given up is to wait until it is.
        stopped, found = await client.cancel_evaluation(request_id=asked.request_id)
        assert not stopped
        assert found.verdict is Verdict.CANCELLED
        host.executor.release()
        again = await client.evaluate(asked)
        assert (again.verdict, again.evaluation_id) == (Verdict.PASSED, found.evaluation_id)

    async def test_a_deadline_is_going_away(self, host: Any, make_request: Any) -> None:
        client = await host.start(grace_s=0.05)
        await client.register_problem(Problem(source=PROBLEM))
        seconds = 0.25
        # On a busy machine a deadline may pass before anything has begun; that shows nothing.
        while not host.executor.started:
            seconds *= 2
            with pytest.raises(errors.DeadlineExceeded):
                await client.evaluate(make_request("passed hold"), timeout=seconds)
        await host.executor.until("cancelled", 1)

    async def test_a_registration_that_nobody_waits_for_ends(self, host: Any) -> None:
        client = await host.start(ScriptedExecutor(audit_hold=True), grace_s=0.05)
        task = asyncio.create_task(client.register_problem(Problem(source=PROBLEM)))
        await host.executor.until("audits", 1)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await host.executor.until("cancelled", 1)


class TestDrain:
    async def test_refuses_new_finishes_running_keeps_queued(self, host: Any, make_request: Any) -> None:
        client = await host.start()
        running, queued = make_request("passed hold"), make_request("passed queued")
        first = host.ask(running)
        await host.executor.until("started", 1)
        second = host.ask(queued)
        await second.queued()
        stopping = asyncio.create_task(host.stop(60))
        with pytest.raises(errors.Draining):
            await second
        with pytest.raises(errors.Draining):
            await client.evaluate(make_request("passed new"))
        host.executor.release()
        assert (await first).verdict is Verdict.PASSED
        await stopping
        assert host.executor.closed
        # What was accepted goes on by itself.
        await host.start()
        await host.executor.until("ended", 1)
        assert host.executor.started == ["passed queued"]

    async def test_stops_what_does_not_end_in_time_and_goes_on_at_the_next_start(
        self, host: Any, make_request: Any
    ) -> None:
        client = await host.start()
        asked = make_request("passed hold")
        task = host.ask(asked)
        await host.executor.until("started", 1)
        await host.stop(0.05)
        with pytest.raises((errors.Draining, errors.Unreachable)):
            await task
        assert host.executor.cancelled == ["passed hold"]
        client = await host.start()
        again = host.ask(asked, client)
        await host.executor.until("started", 1)
        host.executor.release()
        assert (await again).verdict is Verdict.PASSED
        assert host.executor.started == ["passed hold"]
