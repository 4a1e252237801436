"""Problems over the wire: audited once, refused with reasons, waited for by requests."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from scripted_executor import PROBLEM, REFUSED, ScriptedExecutor

from kernelevo_api import errors
from kernelevo_api.client import problem_digest
from kernelevo_api.types import (
    Candidate,
    Problem,
    Progress,
    Stage,
    Verdict,
)
from kernelevo_evaluator.executor import MAKES_NO_SEEDS

pytestmark = pytest.mark.timeout(120)

DIGEST = problem_digest(PROBLEM)


class TestProblems:
    async def test_registered_twice_is_audited_once(self, host: Any) -> None:
        client = await host.start()
        seen: list[Progress] = []
        first = await client.register_problem(Problem(source=PROBLEM, name="plus one"), on_progress=seen.append)
        second = await client.register_problem(Problem(source=PROBLEM))
        assert first == second
        assert first.name == "plus one"
        assert Stage.AUDIT in [one.stage for one in seen]
        assert host.executor.audits == [DIGEST]

    async def test_seeds_are_looked_for_when_asked_for_and_once(self, host: Any) -> None:
        client = await host.start()
        plain = await client.register_problem(Problem(source=PROBLEM))
        assert not plain.seeds
        seeded = await client.register_problem(Problem(source=PROBLEM), with_seeds=True)
        assert [seed.name for seed in seeded.seeds] == ["scripted"]
        assert await client.register_problem(Problem(source=PROBLEM), with_seeds=True) == seeded
        assert host.executor.audits == [DIGEST] and host.executor.seeded == [DIGEST]

    async def test_that_an_evaluator_makes_no_seeds_is_not_kept_for_one_that_does(self, host: Any) -> None:
        client = await host.start(ScriptedExecutor(makes_seeds=False))
        without = await client.register_problem(Problem(source=PROBLEM), with_seeds=True)
        assert not without.seeds and [finding.code for finding in without.findings] == [MAKES_NO_SEEDS]
        await host.stop()
        client = await host.start()
        seeded = await client.register_problem(Problem(source=PROBLEM), with_seeds=True)
        assert [seed.name for seed in seeded.seeds] == ["scripted"] and not seeded.findings
        assert not host.executor.audits, "the report itself is kept"

    async def test_registered_at_once_by_two_is_audited_once(self, host: Any) -> None:
        client = await host.start(ScriptedExecutor(audit_hold=True))
        tasks = [asyncio.create_task(client.register_problem(Problem(source=PROBLEM))) for _ in range(2)]
        await host.executor.until("audits", 1)
        host.executor.release()
        assert len({report.problem_digest for report in await asyncio.gather(*tasks)}) == 1
        assert host.executor.audits == [DIGEST]

    async def test_a_refused_problem_says_why_and_a_flag_accepts_it_with_a_mark(
        self, host: Any, make_request: Any
    ) -> None:
        client = await host.start()
        refused = Problem(source=REFUSED)
        with pytest.raises(errors.ProblemRefused) as caught:
            await client.register_problem(refused)
        assert caught.value.violations[0].description.startswith("constant_output")
        assert (await client.register_problem(refused, accept_refused=True)).accepted_with_mark
        with pytest.raises(errors.ProblemRefused):
            await client.register_problem(refused)
        with pytest.raises(errors.ProblemRefused):
            await client.evaluate(make_request(problem=refused))
        evaluation = await client.evaluate(make_request(problem=refused, accept_refused_problem=True))
        assert evaluation.problem_accepted_with_mark

    async def test_a_refused_problem_is_audited_once_too(self, host: Any) -> None:
        client = await host.start()
        refused, digest = Problem(source=REFUSED), problem_digest(REFUSED)
        said = []
        for again in (False, False, True):
            if again:
                await host.stop()
                client = await host.start()
            with pytest.raises(errors.ProblemRefused) as caught:
                await client.register_problem(refused)
            said.append([one.description for one in caught.value.violations])
        assert said[0] == said[1] == said[2] and host.executor.audits == []
        assert (await client.register_problem(refused, accept_refused=True)).accepted_with_mark
        assert host.executor.audits == []
        await host.stop()
        client = await host.start(ScriptedExecutor(toolchain_version="2"))
        with pytest.raises(errors.ProblemRefused):
            await client.register_problem(refused)
        assert host.executor.audits == [digest]

    async def test_what_the_host_is_too_small_for_is_audited_again(self, host: Any) -> None:
        client = await host.start()
        for _ in range(2):
            with pytest.raises(errors.ProblemRefused):
                await client.register_problem(Problem(source=f"{REFUSED}# too_large\n"))
        assert len(host.executor.audits) == 2

    async def test_another_toolchain_is_audited_again(self, host: Any, make_request: Any) -> None:
        client = await host.start()
        await client.register_problem(Problem(source=PROBLEM))
        await host.stop()
        client = await host.start(ScriptedExecutor(toolchain_version="2"))
        assert (await client.evaluate(make_request(problem=None, problem_digest=DIGEST))).verdict is Verdict.PASSED
        assert host.executor.audits == [DIGEST]


class TestBeforeTheAudit:
    async def test_cancelled_while_the_problem_is_audited(self, host: Any, make_request: Any) -> None:
        client = await host.start(ScriptedExecutor(audit_hold=True))
        asked = make_request()
        task = host.ask(asked)
        await host.executor.until("audits", 1)
        assert isinstance(await client.get_evaluation(request_id=asked.request_id), Progress)
        stopped, evaluation = await client.cancel_evaluation(request_id=asked.request_id)
        assert stopped
        assert await task == evaluation
        assert evaluation.verdict is Verdict.CANCELLED
        assert (await client.get_capabilities()).queue.running == 0

    async def test_those_that_wait_for_an_audit_count_for_the_bound(self, host: Any, make_request: Any) -> None:
        client = await host.start(ScriptedExecutor(audit_hold=True), queue_capacity=3, queue_capacity_per_client=2)
        asked = []
        for name in ("a1", "a2", "b1"):
            asked.append(host.ask(make_request(f"passed {name}", client_id=name[0])))
            await asked[-1].at(Stage.AUDIT)
            if name == "a2":
                with pytest.raises(errors.QueueFull, match="this client's share"):
                    await client.evaluate(make_request("passed a3", client_id="a"))
        with pytest.raises(errors.QueueFull, match="the queue is full"):
            await client.evaluate(make_request("passed c1", client_id="c"))
        host.executor.release()
        assert {one.verdict for one in await asyncio.gather(*(one.task for one in asked))} == {Verdict.PASSED}
        assert len(host.executor.audits) == 1

    async def test_a_report_that_was_made_since_one_looked_is_not_made_again(
        self, host: Any, make_request: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client = await host.start()
        looked, go = asyncio.Event(), asyncio.Event()
        report = host.server._store.report

        async def late(*arguments: Any) -> Any:
            found = await report(*arguments)
            if not looked.is_set():
                looked.set()
                await go.wait()
            return found

        monkeypatch.setattr(host.server._store, "report", late)
        slow = host.ask(make_request("passed 1"))
        await looked.wait()
        assert (await client.evaluate(make_request("passed 2"))).verdict is Verdict.PASSED
        go.set()
        assert (await slow).verdict is Verdict.PASSED
        assert host.executor.audits == [DIGEST]

    async def test_a_bad_request_does_not_wait_for_an_audit(self, host: Any, make_request: Any) -> None:
        client = await host.start(ScriptedExecutor(audit_hold=True))
        with pytest.raises(errors.Unsupported):
            await client.evaluate(make_request(candidate=Candidate(source="import triton")))
        assert (await client.evaluate(make_request(candidate=Candidate(source="def")))).verdict is Verdict.COMPILE_ERROR
        assert host.executor.audits == []

    async def test_interrupted_in_the_audit_goes_on(self, host: Any, make_request: Any) -> None:
        client = await host.start(ScriptedExecutor(audit_hold=True))
        asked = make_request()
        task = host.ask(asked, client)
        await host.executor.until("audits", 1)
        await host.stop(0.0)
        with pytest.raises((errors.Draining, errors.Unreachable)):
            await task
        await host.start()
        await host.executor.until("ended", 1)
        assert (await host.client().evaluate(asked)).verdict is Verdict.PASSED
        assert (len(host.executor.audits), len(host.executor.started)) == (1, 1)
