"""Where a call's time goes: what a trace and a time say, and a profile of a real candidate on the processor."""

from __future__ import annotations

import pytest
from core_bench import HONEST

from kernelevo_api.types import Bottleneck, Stage, Verdict
from kernelevo_evaluator.messages.referee import MachineFacts
from kernelevo_evaluator.messages.runner import Traced, TracedPart
from kernelevo_evaluator.referee.profile import OWN_CODE, profile_of, roofline_of

FACTS = MachineFacts(
    torch="2",
    cache_bytes=1 << 20,
    read_gb_per_s=2000.0,
    copy_gb_per_s=1000.0,
    rates={"float32": 50.0, "bfloat16": 500.0},
)


def traced(wall: float, **parts: float) -> Traced:
    return Traced(nonce=1, wall_us=wall, parts=tuple(TracedPart(name=n, us=us, count=2) for n, us in parts.items()))


def roofline(call_us: float, nbytes: int, operations: int = 0, dtype: str = "float32", math: str = "ieee"):
    return roofline_of(call_us, nbytes=nbytes, operations=operations, facts=FACTS, dtype=dtype, math=math)


def test_shares_of_what_was_measured():
    found = roofline(100.0, nbytes=50_000_000, operations=1_000_000_000)
    assert (found.gb_per_s, found.bandwidth_share) == (500.0, 0.5)
    assert (found.tflop_per_s, found.rate_share) == (10.0, 0.2)
    assert roofline(100.0, 0, 10**9, dtype="bfloat16").rate_share == pytest.approx(0.02)
    assert roofline(100.0, 0, 10**9, math="tf32").rate_share is None, "no rate of TF32 was measured"
    assert roofline(100.0, 0) is None
    assert roofline(0.0, 10) is None


@pytest.mark.parametrize(
    ("nbytes", "operations", "traced_us", "due"),
    [
        (90_000_000, 0, 95.0, Bottleneck.MEMORY),
        (10_000_000, 4_500_000_000, 95.0, Bottleneck.COMPUTE),
        (10_000_000, 0, 20.0, Bottleneck.LAUNCH),
        (10_000_000, 0, 95.0, Bottleneck.NEITHER),
    ],
)
def test_what_holds_a_call_up(nbytes, operations, traced_us, due):
    profile = profile_of(
        traced(100.0, rows=traced_us), on_gpu=True, call_us=100.0, roofline=roofline(100.0, nbytes, operations)
    )
    assert profile.bottleneck is due


def test_kernels_of_a_gpu_by_time():
    profile = profile_of(
        traced(100.0, ampere_sgemm_128x64_tn=20.0, rows=70.0), on_gpu=True, call_us=None, roofline=None
    )
    assert [(one.kernel, one.of_candidate, one.count) for one in profile.launches] == [
        ("rows", True, 2),
        ("ampere_sgemm_128x64_tn", False, 2),
    ]
    assert profile.traced_us == 90.0 and profile.bottleneck is None


def test_what_operators_leave_of_a_call_is_the_candidates():
    trace = traced(100.0, **{"aten.mm.default": 30.0, "aten.view.default": 5.0})
    launches = profile_of(trace, on_gpu=False, call_us=100.0, roofline=None).launches
    assert [(one.kernel, one.total_us) for one in launches] == [(OWN_CODE, 70.0), ("aten.mm.default", 30.0)]


@pytest.mark.asyncio(loop_scope="session")
async def test_a_profile_that_was_asked_for(bench):
    evaluation = await bench.judge(HONEST, profile=True)
    assert evaluation.verdict is Verdict.PASSED, evaluation.message
    assert Stage.PROFILE in {entry.stage for entry in evaluation.timeline.stages}
    assert any("addmm" in launch.kernel or "linear" in launch.kernel for launch in evaluation.profile.launches)
    assert not evaluation.profile.remarks
    assert evaluation.profile.call_us is None, "nothing was timed"
    assert (await bench.judge(HONEST)).profile is None


@pytest.mark.asyncio(loop_scope="session")
async def test_what_ends_while_it_is_profiled_keeps_its_verdict(bench):
    last = "        return torch.clamp("
    assert last in HONEST
    dies = "import os, sys\n" + HONEST.replace(
        last, f"        if any('runner.tracing' in name for name in sys.modules):\n            os._exit(3)\n{last}"
    )
    evaluation = await bench.judge(dies, profile=True, skip_timing=False)
    assert evaluation.verdict is Verdict.PASSED, evaluation.message
    assert "could not be recorded" in evaluation.profile.remarks[0]
    await bench.works()
