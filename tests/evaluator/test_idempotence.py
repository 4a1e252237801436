"""Each request is carried out once: joined, replayed, answered from the store, tried again. Counts work, not seconds."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest
from scripted_executor import PROBLEM, ScriptedExecutor, candidate

from kernelevo_api import errors
from kernelevo_api.channel import RetryPolicy
from kernelevo_api.client import problem_digest
from kernelevo_api.types import (
    Candidate,
    Effort,
    Limits,
    Stage,
    Verdict,
)

pytestmark = pytest.mark.timeout(120)

DIGEST = problem_digest(PROBLEM)


class TestIdempotence:
    async def test_the_same_id_joins_the_run_in_flight(self, host: Any, make_request: Any) -> None:
        client = await host.start()
        asked = make_request("passed hold")
        streams = [host.ask(asked, client) for _ in range(3)]
        for one in streams:
            await one.at(Stage.TIME)
        host.executor.release()
        first, *others = await asyncio.gather(*(one.task for one in streams))
        assert others == [first, first]
        assert host.executor.started == ["passed hold"]

    async def test_the_same_id_replays_the_finished_one(self, host: Any, make_request: Any) -> None:
        client = await host.start()
        asked = make_request("output_mismatch")
        first = await client.evaluate(asked)
        await host.stop()
        client = await host.start()
        # By digest now: the content is the same.
        again = dataclasses.replace(asked, problem=None, problem_digest=DIGEST)
        assert await client.evaluate(again) == first
        assert host.executor.started == []

    async def test_the_same_id_with_other_content_is_refused(self, host: Any, make_request: Any) -> None:
        client = await host.start()
        asked = make_request()
        await client.evaluate(asked)
        for change in ({"candidate": Candidate(source=candidate("crashed"))}, {"skip_timing": True}):
            with pytest.raises(errors.RequestIdReused):
                await client.evaluate(dataclasses.replace(asked, **change))

    async def test_what_is_known_in_memory_is_answered_in_one_step(
        self, host: Any, make_request: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client = await host.start()
        first = await client.evaluate(make_request())
        looked: list[str] = []
        store = host.server._store
        look = store.request

        async def seen(**asked: Any) -> Any:
            looked.append(asked["request_id"])
            return await look(**asked)

        monkeypatch.setattr(store, "request", seen)
        asked = make_request(problem=None, problem_digest=DIGEST)
        cached = await client.evaluate(asked)
        assert cached == dataclasses.replace(
            first,
            evaluation_id=cached.evaluation_id,
            request_id=asked.request_id,
            created_at=cached.created_at,
            from_cache=True,
        )
        assert cached.evaluation_id != first.evaluation_id
        assert looked == []
        assert await client.get_evaluation(evaluation_id=cached.evaluation_id) == cached
        # The id is as good as any other's from then on.
        assert await client.evaluate(asked) == cached
        with pytest.raises(errors.RequestIdReused):
            await client.evaluate(dataclasses.replace(asked, skip_timing=True))
        fresh = await client.evaluate(make_request(problem=None, problem_digest=DIGEST, fresh=True))
        assert not fresh.from_cache
        assert host.executor.started == ["passed"] * 2
        await host.stop()
        client = await host.start()
        assert await client.evaluate(asked) == cached
        assert [one.request_id async for one in client.list_evaluations()].count(asked.request_id) == 1

    async def test_two_equal_requests_at_once_run_once(self, host: Any, make_request: Any) -> None:
        client = await host.start()
        streams = [host.ask(make_request("passed hold"), client) for _ in range(3)]
        for one in streams:
            await one.at(Stage.TIME)
        host.executor.release()
        found = await asyncio.gather(*(one.task for one in streams))
        assert len({one.evaluation_id for one in found}) == 3
        assert host.executor.started == ["passed hold"]

    async def test_an_equal_request_later_is_answered_from_the_store(self, host: Any, make_request: Any) -> None:
        client = await host.start()
        first = await client.evaluate(make_request())
        second = await client.evaluate(make_request())
        assert (first.from_cache, second.from_cache) == (False, True)
        assert first.evaluation_id != second.evaluation_id
        for different in (
            {"fresh": True},
            {"effort": Effort.SCREEN},
            {"skip_timing": True},
            {"limits": Limits(processes=7)},
            {"candidate": Candidate(source=candidate("passed", "# other"))},
        ):
            assert not (await client.evaluate(make_request(**different))).from_cache
        assert len(host.executor.started) == 6

    @pytest.mark.parametrize(
        "verdict", ["timeout", "out_of_memory", "timing_disputed", "crashed", "cancelled", "problem_fault"]
    )
    async def test_what_says_nothing_of_the_candidate_is_not_cached(
        self, host: Any, make_request: Any, verdict: str
    ) -> None:
        client = await host.start()
        await client.evaluate(make_request(verdict))
        assert not (await client.evaluate(make_request(verdict))).from_cache
        assert host.executor.started == [verdict, verdict]

    async def test_another_toolchain_does_not_hit_the_cache(self, host: Any, make_request: Any) -> None:
        client = await host.start()
        await client.evaluate(make_request())
        await host.stop()
        client = await host.start(ScriptedExecutor(toolchain_version="2"))
        assert not (await client.evaluate(make_request())).from_cache

    async def test_an_evaluator_with_other_deep_checks_does_not_hit_the_cache(
        self, host: Any, make_request: Any
    ) -> None:
        client = await host.start(deep_checks="never")
        await client.evaluate(make_request())
        for deep_checks, from_cache in (("never", True), ("final", False)):
            await host.stop()
            client = await host.start(deep_checks=deep_checks)
            assert (await client.evaluate(make_request())).from_cache is from_cache


class TestFaults:
    async def test_a_fault_is_retried_once(self, host: Any, make_request: Any) -> None:
        client = await host.start()
        assert (await client.evaluate(make_request("passed fault-once"))).verdict is Verdict.PASSED
        assert len(host.executor.started) == 2

    async def test_two_faults_are_ours_and_the_same_id_may_be_sent_again(self, host: Any, make_request: Any) -> None:
        client = await host.start()
        asked = make_request("passed fault")
        for runs in (2, 4):
            with pytest.raises(errors.EvaluatorFault, match="the device is gone"):
                await client.evaluate(asked)
            assert len(host.executor.started) == runs
        patient = host.client(retry=RetryPolicy(unavailable_s=1.0, first_delay_s=0.01, maximum_delay_s=0.02))
        flaky = make_request("passed fault")
        host.executor.started.clear()
        task = host.ask(flaky, patient)
        await host.executor.until("started", 4)
        await task.gone()

    async def test_a_verdict_of_our_own_fault_is_an_error(self, host: Any, make_request: Any) -> None:
        client = await host.start()
        with pytest.raises(errors.EvaluatorFault):
            await client.evaluate(make_request("evaluator_fault"))

    async def test_a_bug_in_the_executor_is_an_error_and_the_server_goes_on(self, host: Any, make_request: Any) -> None:
        client = await host.start()
        with pytest.raises(errors.EvaluatorFault, match="RuntimeError: boom"):
            await client.evaluate(make_request("passed boom"))
        assert (await client.evaluate(make_request())).verdict is Verdict.PASSED
