"""The whole contract over a real server, a real socket and the real client. Counts work, not seconds."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import uuid
from datetime import timedelta
from typing import Any

import grpc
import pytest
import sqlalchemy as sa
from scripted_executor import PROBLEM, REFUSED, ScriptedExecutor, candidate

from kernelevo_api import errors
from kernelevo_api.channel import RetryPolicy
from kernelevo_api.client import problem_digest
from kernelevo_api.evaluator.v1 import evaluator_pb2 as pb
from kernelevo_api.evaluator.v1 import evaluator_pb2_grpc
from kernelevo_api.types import (
    BaselineKind,
    Candidate,
    DeviceKind,
    DeviceRequirement,
    Effort,
    Evaluation,
    Language,
    Limits,
    Problem,
    Progress,
    Stage,
    Verdict,
)

pytestmark = pytest.mark.timeout(60)

DIGEST = problem_digest(PROBLEM)


async def gone(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


class TestEvaluate:
    async def test_streams_progress_and_then_one_verdict(self, host: Any, make_request: Any) -> None:
        client = await host.start()
        seen: list[Progress] = []
        asked = make_request("passed")
        evaluation = await client.evaluate(asked, on_progress=seen.append)
        assert evaluation.verdict is Verdict.PASSED
        assert evaluation.request_id == asked.request_id
        assert (evaluation.effort, evaluation.baseline) == (Effort.FULL, BaselineKind.EAGER)
        assert evaluation.created_at is not None
        stages = [one.stage for one in seen]
        assert stages[0] is Stage.ADMIT
        assert Stage.AUDIT in stages
        assert stages[-3:] == [Stage.BUILD, Stage.CHECK, Stage.TIME]
        assert {one.evaluation_id for one in seen[-3:]} == {evaluation.evaluation_id}

    @pytest.mark.parametrize("verdict", [one for one in Verdict if one is not Verdict.EVALUATOR_FAULT])
    async def test_every_verdict_is_data(self, host: Any, make_request: Any, verdict: Verdict) -> None:
        client = await host.start()
        assert (await client.evaluate(make_request(verdict.value))).verdict is verdict

    async def test_a_syntax_error_is_a_verdict_with_its_line_and_runs_nothing(
        self, host: Any, make_request: Any
    ) -> None:
        client = await host.start()
        source = "class ModelNew:\n    def forward(self:\n"
        evaluation = await client.evaluate(make_request(candidate=Candidate(source=source)))
        assert evaluation.verdict is Verdict.COMPILE_ERROR
        assert evaluation.stage is Stage.ADMIT
        assert evaluation.error is not None
        assert evaluation.error.line == 2
        assert evaluation.build is not None
        assert evaluation.build.diagnostics[0].line == 2
        assert host.executor.started == []
        assert await client.get_evaluation(evaluation_id=evaluation.evaluation_id) == evaluation

    async def test_the_problem_by_digest_and_an_unknown_digest_is_registered_and_resent(
        self, host: Any, make_request: Any
    ) -> None:
        client = await host.start()
        asked = make_request(problem=None, problem_digest=DIGEST)
        with pytest.raises(errors.UnknownProblem):
            await client.evaluate(asked)
        report = await client.register_problem(Problem(source=PROBLEM))
        assert report.problem_digest == DIGEST
        await client.evaluate(asked)
        # A client that has registered the problem elsewhere brings it along.
        await host.stop()
        other = host.client()
        host.folder = host.folder / "elsewhere"
        await host.start()
        other._problems[DIGEST] = Problem(source=PROBLEM)
        assert (await other.evaluate(asked)).verdict is Verdict.PASSED
        assert host.executor.audits == [DIGEST]

    async def test_limits_are_resolved_and_the_others_default(self, host: Any, make_request: Any) -> None:
        client = await host.start()
        await client.evaluate(make_request(limits=Limits(check_time=timedelta(seconds=7))))
        (job,) = host.executor.jobs
        assert job.limits.check_time == timedelta(seconds=7)
        assert job.limits.build_time == timedelta(seconds=60)
        assert all(getattr(job.limits, field.name) is not None for field in dataclasses.fields(Limits))

    async def test_findings_of_the_static_look_are_reported(self, host: Any, make_request: Any) -> None:
        client = await host.start()
        evaluation = await client.evaluate(make_request("passed", extra="import subprocess\n"))
        assert [(one.code, one.line) for one in evaluation.findings] == [("starts_processes", 4)]


class TestLanguages:
    POLICY = PROBLEM + 'KERNELEVO = {"languages": ["cpp_inline"]}\n'

    async def test_what_the_problem_rules_out_is_a_verdict(self, host: Any, make_request: Any) -> None:
        client = await host.start()
        evaluation = await client.evaluate(make_request(problem=Problem(source=self.POLICY)))
        assert (evaluation.verdict, evaluation.stage) == (Verdict.NOT_THE_LANGUAGE, Stage.ADMIT)
        assert evaluation.language is Language.TORCH
        assert "asks for cpp_inline" in evaluation.message
        assert host.executor.started == []

    async def test_to_ask_for_it_is_an_error(self, host: Any, make_request: Any) -> None:
        client = await host.start()
        asked = make_request(
            problem=Problem(source=self.POLICY), candidate=Candidate(source=candidate(), language=Language.TORCH)
        )
        with pytest.raises(errors.InvalidRequest, match="the problem allows cpp_inline, not torch"):
            await client.evaluate(asked)

    async def test_what_is_recognised_is_what_runs(self, host: Any, make_request: Any) -> None:
        client = await host.start()
        source = candidate("passed", "lib = load_inline(name='a', cpp_sources='')\n")
        problem = Problem(source=self.POLICY)
        evaluation = await client.evaluate(make_request(problem=problem, candidate=Candidate(source=source)))
        assert (evaluation.verdict, evaluation.language) == (Verdict.PASSED, Language.CPP_INLINE)

    async def test_a_claim_that_the_source_does_not_show_is_a_finding(self, host: Any, make_request: Any) -> None:
        client = await host.start()
        claimed = Candidate(source=candidate(), language=Language.CPP_INLINE)
        evaluation = await client.evaluate(make_request(candidate=claimed))
        assert (evaluation.verdict, evaluation.language) == (Verdict.PASSED, Language.CPP_INLINE)
        assert [one.code for one in evaluation.findings] == ["language_not_seen"]

    async def test_a_baseline_candidate_is_read_like_the_first(self, host: Any, make_request: Any) -> None:
        client = await host.start()
        broken = {"baseline": BaselineKind.CANDIDATE, "baseline_candidate": Candidate(source="def f(:")}
        with pytest.raises(errors.InvalidRequest) as caught:
            await client.evaluate(make_request(**broken))
        assert [one.field for one in caught.value.violations] == ["baseline_candidate.source"]
        other = {"baseline": BaselineKind.CANDIDATE, "baseline_candidate": Candidate(source=candidate("x"))}
        await client.evaluate(make_request(**other))
        assert host.executor.jobs[0].baseline_language is Language.TORCH


class TestBadRequests:
    async def test_a_long_reason_in_any_script_reaches_the_client(self, host: Any) -> None:
        client = await host.start()
        for letter in ("m", "漢", "🙂"):
            source = "\n".join(f"KERNELEVO = {{'{letter * 500}{n}': 1}}" for n in range(30))
            with pytest.raises(errors.ProblemRefused) as caught:
                await client.register_problem(Problem(source=source))
            assert caught.value.violations

    @pytest.mark.parametrize(
        ("fields", "kind", "field"),
        [
            ({"request_id": "nonsense"}, errors.InvalidRequest, "request_id"),
            ({"problem": None}, errors.InvalidRequest, "problem_ref"),
            ({"problem": None, "problem_digest": "ABC"}, errors.InvalidRequest, "problem_digest"),
            ({"candidate": None}, errors.InvalidRequest, "candidate"),
            ({"client_id": "c" * 129}, errors.InvalidRequest, "client_id"),
            ({"baseline": BaselineKind.CANDIDATE}, errors.InvalidRequest, "baseline_candidate"),
            ({"bound_speedup": 1.5}, errors.InvalidRequest, "bound_speedup"),
            ({"bound_speedup": float("nan"), "effort": Effort.SCREEN}, errors.InvalidRequest, "bound_speedup"),
            ({"limits": Limits(processes=0)}, errors.InvalidRequest, "limits.processes"),
            ({"limits": Limits(run_time=timedelta(seconds=-1))}, errors.InvalidRequest, "limits.run_time"),
            ({"limits": Limits(build_time=timedelta(seconds=601))}, errors.LimitTooHigh, "limits.build_time"),
            ({"limits": Limits(memory_bytes=1 << 40)}, errors.LimitTooHigh, "limits.memory_bytes"),
            ({"candidate": Candidate(source="#" * (1 << 20) + "\n#")}, errors.TooLarge, "candidate.source"),
            ({"problem": Problem(source="#" * (1 << 20) + "\n#")}, errors.TooLarge, "problem.source"),
            ({"effort": Effort.FINAL}, errors.Unsupported, "effort"),
            ({"device": DeviceRequirement(kind=DeviceKind.CUDA)}, errors.Unsupported, "device"),
            (
                {"candidate": Candidate(source="x = 1", language=Language.TRITON)},
                errors.Unsupported,
                "candidate.language",
            ),
            ({"candidate": Candidate(source="import triton")}, errors.Unsupported, "candidate.language"),
            ({"problem": Problem(source="class Model: pass")}, errors.ProblemRefused, "problem.source"),
        ],
    )
    async def test_name_their_field(
        self, host: Any, make_request: Any, fields: dict[str, Any], kind: type[errors.CallRefused], field: str
    ) -> None:
        client = await host.start()
        with pytest.raises(kind) as caught:
            await client.evaluate(make_request(**fields))
        assert field in [one.field for one in caught.value.violations]
        assert host.executor.started == []

    async def test_enum_numbers_that_are_not_in_the_contract_are_refused(self, host: Any) -> None:
        await host.start()
        async with grpc.aio.insecure_channel(host.address) as channel:
            stub: Any = evaluator_pb2_grpc.EvaluatorServiceStub(channel)
            message = pb.EvaluateRequest(request_id=str(uuid.uuid4()), effort=77)  # type: ignore[arg-type]
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async for _ in stub.Evaluate(message):
                    pass
        error = errors.from_rpc_error(caught.value, host.address)
        assert isinstance(error, errors.InvalidRequest)
        assert [one.field for one in error.violations] == ["effort"]

    async def test_a_message_beyond_the_bound_is_refused_and_the_server_goes_on(
        self, host: Any, make_request: Any
    ) -> None:
        client = await host.start()
        with pytest.raises(errors.TooLarge):
            await client.evaluate(make_request(candidate=Candidate(source="#" * (17 << 20))))
        assert (await client.evaluate(make_request())).verdict is Verdict.PASSED

    async def test_nothing_listens(self, host: Any) -> None:
        with pytest.raises(errors.Unreachable, match="kernelevo-evaluator serve"):
            await host.client(retry=RetryPolicy()).get_capabilities()


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

    async def test_another_toolchain_is_audited_again(self, host: Any, make_request: Any) -> None:
        client = await host.start()
        await client.register_problem(Problem(source=PROBLEM))
        await host.stop()
        client = await host.start(ScriptedExecutor(toolchain_version="2"))
        assert (await client.evaluate(make_request(problem=None, problem_digest=DIGEST))).verdict is Verdict.PASSED
        assert host.executor.audits == [DIGEST]


class TestIdempotence:
    async def test_the_same_id_joins_the_run_in_flight(self, host: Any, make_request: Any) -> None:
        client = await host.start()
        asked = make_request("passed hold")
        tasks = [asyncio.create_task(client.evaluate(asked)) for _ in range(3)]
        await host.executor.until("started", 1)
        host.executor.release()
        first, *others = await asyncio.gather(*tasks)
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

    async def test_two_equal_requests_at_once_run_once(self, host: Any, make_request: Any) -> None:
        client = await host.start()
        tasks = [asyncio.create_task(client.evaluate(make_request("passed hold"))) for _ in range(3)]
        await host.executor.until("started", 1)
        for task in tasks:
            assert not task.done()
        host.executor.release()
        found = await asyncio.gather(*tasks)
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
        task = asyncio.create_task(patient.evaluate(flaky))
        await host.executor.until("started", 4)
        await gone(task)

    async def test_a_verdict_of_our_own_fault_is_an_error(self, host: Any, make_request: Any) -> None:
        client = await host.start()
        with pytest.raises(errors.EvaluatorFault):
            await client.evaluate(make_request("evaluator_fault"))

    async def test_a_bug_in_the_executor_is_an_error_and_the_server_goes_on(self, host: Any, make_request: Any) -> None:
        client = await host.start()
        with pytest.raises(errors.EvaluatorFault, match="RuntimeError: boom"):
            await client.evaluate(make_request("passed boom"))
        assert (await client.evaluate(make_request())).verdict is Verdict.PASSED


class TestQueue:
    async def test_full_is_refused_at_once_with_a_delay(self, host: Any, make_request: Any) -> None:
        client = await host.start(queue_capacity=2, queue_capacity_per_client=2)
        await client.register_problem(Problem(source=PROBLEM))
        running = asyncio.create_task(client.evaluate(make_request("passed hold")))
        await host.executor.until("started", 1)
        waiting = [asyncio.create_task(client.evaluate(make_request(f"passed w{n}"))) for n in range(2)]
        while (await client.get_capabilities()).queue.queued < 2:
            await asyncio.sleep(0.01)
        with pytest.raises(errors.QueueFull) as caught:
            await client.evaluate(make_request("passed late"))
        assert caught.value.retry_delay is not None
        assert timedelta(seconds=1) <= caught.value.retry_delay <= timedelta(seconds=60)
        # A client with patience gets through under the same id once there is room.
        late = make_request("passed late")
        patient = asyncio.create_task(host.client(retry=RetryPolicy()).evaluate(late))
        await asyncio.sleep(0.05)
        host.executor.release()
        await asyncio.gather(running, *waiting)
        assert (await patient).request_id == late.request_id
        assert sorted(host.executor.started) == ["passed hold", "passed late", "passed w0", "passed w1"]

    async def test_a_client_has_a_share_and_takes_turns(self, host: Any, make_request: Any) -> None:
        client = await host.start(queue_capacity=8, queue_capacity_per_client=3)
        await client.register_problem(Problem(source=PROBLEM))
        tasks = [asyncio.create_task(client.evaluate(make_request("passed hold", client_id="a")))]
        await host.executor.until("started", 1)
        for name in ("a1", "a2", "a3", "b1", "c1"):
            queued = (await client.get_capabilities()).queue.queued
            asked = make_request(f"passed {name}", client_id=name[0])
            tasks.append(asyncio.create_task(client.evaluate(asked)))
            while (await client.get_capabilities()).queue.queued == queued:
                await asyncio.sleep(0.005)
        with pytest.raises(errors.QueueFull, match="this client's share"):
            await client.evaluate(make_request("passed a4", client_id="a"))
        host.executor.release()
        await asyncio.gather(*tasks)
        order = [script.removeprefix("passed ") for script in host.executor.started]
        assert order == ["hold", "a1", "b1", "c1", "a2", "a3"]

    async def test_queued_requests_hear_how_many_are_ahead(self, host: Any, make_request: Any) -> None:
        client = await host.start()
        await client.register_problem(Problem(source=PROBLEM))
        first = asyncio.create_task(client.evaluate(make_request("passed hold")))
        await host.executor.until("started", 1)
        seen: list[Progress] = []
        second = asyncio.create_task(client.evaluate(make_request("passed 1"), on_progress=seen.append))
        while not seen or seen[-1].queue_position is None:
            await asyncio.sleep(0.005)
        assert seen[-1].queue_position == 0
        host.executor.release()
        await asyncio.gather(first, second)


class TestCancel:
    async def test_stops_what_runs_and_returns_when_it_is_gone(self, host: Any, make_request: Any) -> None:
        client = await host.start()
        asked = make_request("passed hold")
        task = asyncio.create_task(client.evaluate(asked))
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
        first = asyncio.create_task(client.evaluate(make_request("passed hold")))
        await host.executor.until("started", 1)
        asked = make_request("passed queued")
        task = asyncio.create_task(client.evaluate(asked))
        while (await client.get_capabilities()).queue.queued == 0:
            await asyncio.sleep(0.005)
        assert (await client.cancel_evaluation(request_id=asked.request_id))[0]
        assert (await task).verdict is Verdict.CANCELLED
        host.executor.release()
        await first
        assert host.executor.started == ["passed hold"]

    async def test_detaches_one_and_the_work_goes_on_for_the_other(self, host: Any, make_request: Any) -> None:
        client = await host.start()
        one, two = make_request("passed hold"), make_request("passed hold")
        tasks = [asyncio.create_task(client.evaluate(asked)) for asked in (one, two)]
        await host.executor.until("started", 1)
        for asked in (one, two):
            while getattr(await _state(client, asked.request_id), "stage", None) is not Stage.TIME:
                await asyncio.sleep(0.005)
        stopped, evaluation = await client.cancel_evaluation(request_id=one.request_id)
        assert not stopped
        assert evaluation.verdict is Verdict.CANCELLED
        assert host.executor.cancelled == []
        host.executor.release()
        assert (await tasks[1]).verdict is Verdict.PASSED
        assert (await tasks[0]).verdict is Verdict.CANCELLED

    async def test_anothers_request_is_not_ours_to_cancel(self, host: Any, make_request: Any) -> None:
        client = await host.start()
        asked = make_request("passed hold", client_id="a")
        task = asyncio.create_task(client.evaluate(asked))
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


async def _state(client: Any, request_id: str) -> Evaluation | Progress | None:
    with contextlib.suppress(errors.UnknownEvaluation):
        return await client.get_evaluation(request_id=request_id)
    return None


class TestBeforeTheAudit:
    async def test_cancelled_while_the_problem_is_audited(self, host: Any, make_request: Any) -> None:
        client = await host.start(ScriptedExecutor(audit_hold=True))
        asked = make_request()
        task = asyncio.create_task(client.evaluate(asked))
        await host.executor.until("audits", 1)
        assert isinstance(await client.get_evaluation(request_id=asked.request_id), Progress)
        stopped, evaluation = await client.cancel_evaluation(request_id=asked.request_id)
        assert stopped
        assert await task == evaluation
        assert evaluation.verdict is Verdict.CANCELLED
        assert (await client.get_capabilities()).queue.running == 0

    async def test_those_that_wait_for_an_audit_count_for_the_bound(self, host: Any, make_request: Any) -> None:
        client = await host.start(ScriptedExecutor(audit_hold=True), queue_capacity=3, queue_capacity_per_client=2)
        tasks = []
        for name in ("a1", "a2", "b1"):
            asked = make_request(f"passed {name}", client_id=name[0])
            tasks.append(asyncio.create_task(client.evaluate(asked)))
            while not isinstance(await _state(client, asked.request_id), Progress):
                await asyncio.sleep(0.005)
            await host.executor.until("audits", 1)
            if name == "a2":
                with pytest.raises(errors.QueueFull, match="this client's share"):
                    await client.evaluate(make_request("passed a3", client_id="a"))
        with pytest.raises(errors.QueueFull, match="the queue is full"):
            await client.evaluate(make_request("passed c1", client_id="c"))
        host.executor.release()
        assert {one.verdict for one in await asyncio.gather(*tasks)} == {Verdict.PASSED}
        assert len(host.executor.audits) == 1

    async def test_a_bad_request_does_not_wait_for_an_audit(self, host: Any, make_request: Any) -> None:
        client = await host.start(ScriptedExecutor(audit_hold=True))
        with pytest.raises(errors.Unsupported):
            await client.evaluate(make_request(candidate=Candidate(source="import triton")))
        assert (await client.evaluate(make_request(candidate=Candidate(source="def")))).verdict is Verdict.COMPILE_ERROR
        assert host.executor.audits == []

    async def test_interrupted_in_the_audit_goes_on(self, host: Any, make_request: Any) -> None:
        client = await host.start(ScriptedExecutor(audit_hold=True))
        asked = make_request()
        task = asyncio.create_task(client.evaluate(asked))
        await host.executor.until("audits", 1)
        await host.stop(0.0)
        with pytest.raises((errors.Draining, errors.Unreachable)):
            await task
        await host.start()
        await host.executor.until("ended", 1)
        assert (await host.client().evaluate(asked)).verdict is Verdict.PASSED
        assert (len(host.executor.audits), len(host.executor.started)) == (1, 1)


class TestGoingAway:
    async def test_back_within_grace_finds_the_same_run(self, host: Any, make_request: Any) -> None:
        client = await host.start(grace_s=30)
        asked = make_request("passed hold")
        task = asyncio.create_task(client.evaluate(asked))
        await host.executor.until("started", 1)
        await gone(task)
        again = asyncio.create_task(client.evaluate(asked))
        host.executor.release()
        assert (await again).verdict is Verdict.PASSED
        assert host.executor.started == ["passed hold"]

    async def test_beyond_grace_the_work_is_stopped_and_the_id_may_be_sent_again(
        self, host: Any, make_request: Any
    ) -> None:
        client = await host.start(grace_s=0.05)
        asked = make_request("passed hold")
        other = host.client()
        task = asyncio.create_task(other.evaluate(asked))
        await host.executor.until("started", 1)
        await other.close()
        with contextlib.suppress(errors.EvaluatorError, asyncio.CancelledError):
            await task
        await host.executor.until("cancelled", 1)
        while isinstance(found := await client.get_evaluation(request_id=asked.request_id), Progress):
            await asyncio.sleep(0.005)
        assert found.verdict is Verdict.CANCELLED
        host.executor.release()
        again = await client.evaluate(asked)
        assert (again.verdict, again.evaluation_id) == (Verdict.PASSED, found.evaluation_id)

    async def test_a_deadline_is_going_away(self, host: Any, make_request: Any) -> None:
        client = await host.start(grace_s=0.05)
        with pytest.raises(errors.DeadlineExceeded):
            await client.evaluate(make_request("passed hold"), timeout=0.5)
        await host.executor.until("cancelled", 1)

    async def test_a_registration_that_nobody_waits_for_ends(self, host: Any) -> None:
        client = await host.start(ScriptedExecutor(audit_hold=True), grace_s=0.05)
        task = asyncio.create_task(client.register_problem(Problem(source=PROBLEM)))
        await host.executor.until("audits", 1)
        await gone(task)
        async with asyncio.timeout(5):
            while (await client.get_capabilities()).queue.running:
                await asyncio.sleep(0.01)


class TestDrain:
    async def test_refuses_new_finishes_running_keeps_queued(self, host: Any, make_request: Any) -> None:
        client = await host.start()
        running, queued = make_request("passed hold"), make_request("passed queued")
        first = asyncio.create_task(client.evaluate(running))
        await host.executor.until("started", 1)
        second = asyncio.create_task(client.evaluate(queued))
        while (await client.get_capabilities()).queue.queued == 0:
            await asyncio.sleep(0.005)
        stopping = asyncio.create_task(host.stop(10))
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
        task = asyncio.create_task(client.evaluate(asked))
        await host.executor.until("started", 1)
        await host.stop(0.05)
        with pytest.raises((errors.Draining, errors.Unreachable)):
            await task
        assert host.executor.cancelled == ["passed hold"]
        client = await host.start()
        again = asyncio.create_task(client.evaluate(asked))
        await host.executor.until("started", 1)
        host.executor.release()
        assert (await again).verdict is Verdict.PASSED
        assert host.executor.started == ["passed hold"]


class TestRecords:
    async def test_pages_newest_first(self, host: Any, make_request: Any) -> None:
        client = await host.start()
        for number in range(5):
            await client.evaluate(make_request(f"passed {number}"))
        other = Problem(source=PROBLEM + "# other\n")
        await client.evaluate(make_request("crashed", problem=other))
        everything = [one async for one in client.list_evaluations(page_size=2)]
        assert len(everything) == 6
        assert everything[0].verdict is Verdict.CRASHED
        assert sorted(everything, key=lambda one: one.created_at, reverse=True) == everything
        assert len([one async for one in client.list_evaluations(DIGEST, page_size=2)]) == 5
        assert [one async for one in client.list_evaluations("0" * 64)] == []

    async def test_bad_pages_name_their_field(self, host: Any) -> None:
        await host.start()
        async with grpc.aio.insecure_channel(host.address) as channel:
            stub: Any = evaluator_pb2_grpc.EvaluatorServiceStub(channel)
            for field, message in (
                ("page_size", pb.ListEvaluationsRequest(page_size=-1)),
                ("page_size", pb.ListEvaluationsRequest(page_size=1001)),
                ("page_token", pb.ListEvaluationsRequest(page_token="x")),
                ("page_token", pb.ListEvaluationsRequest(page_token="W10=")),
                ("key", pb.GetEvaluationRequest()),
            ):
                method = stub.GetEvaluation if field == "key" else stub.ListEvaluations
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await method(message)
                error = errors.from_rpc_error(caught.value, host.address)
                assert isinstance(error, errors.InvalidRequest)
                assert [one.field for one in error.violations] == [field]

    async def test_capabilities(self, host: Any) -> None:
        client = await host.start(queue_capacity=9, queue_capacity_per_client=3)
        found = await client.get_capabilities()
        assert found.api_version == "v1"
        assert found.devices[0].name == "scripted"
        assert (found.queue.lanes, found.queue.capacity, found.queue.capacity_per_client) == (1, 9, 3)
        await host.stop()
        again = await (await host.start()).get_capabilities()
        assert again.instance_id == found.instance_id != ""

    async def test_a_store_that_cannot_be_written_loses_nothing(self, host: Any, make_request: Any) -> None:
        client = await host.start()
        asked = make_request("passed hold")
        task = asyncio.create_task(client.evaluate(asked))
        await host.executor.until("started", 1)
        store = host.server._store
        with store._writer.connect() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        # Every connection of the pool: a limit on the file's size is what a full disk looks like to SQLite.
        limit = [f"PRAGMA max_page_count={pages}"]

        def full(connection: Any, *_: Any) -> None:
            for statement in limit:
                connection.execute(statement)

        sa.event.listen(store._engine, "checkout", full)
        blob = "x" * 200_000
        with pytest.raises(errors.StoreUnavailable):
            await client.evaluate(make_request("passed", extra=f"# {blob}"))
        host.executor.release()
        limit[:] = ["PRAGMA query_only=1"]
        with pytest.raises(errors.StoreUnavailable):
            await task
        limit[:] = ["PRAGMA query_only=0", "PRAGMA max_page_count=1000000"]
        assert (await client.evaluate(asked)).verdict is Verdict.PASSED
        assert host.executor.started == ["passed hold"]
