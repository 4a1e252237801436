"""What may be asked, and what a verdict is: the contract over a real server, a real socket and the real client."""

from __future__ import annotations

import dataclasses
import uuid
from datetime import timedelta
from typing import Any

import grpc
import pytest
from scripted_executor import PROBLEM, candidate

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
    Language,
    Limits,
    Problem,
    Progress,
    Stage,
    Verdict,
)

pytestmark = pytest.mark.timeout(120)

DIGEST = problem_digest(PROBLEM)


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
            ({"bound_speedup": 1.5, "effort": Effort.FULL}, errors.InvalidRequest, "bound_speedup"),
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
