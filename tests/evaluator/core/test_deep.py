"""What tools around a candidate say: read strictly, told as findings, and how a runner is started under one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from core_bench import HONEST, LIMITS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelevo_api.types import Effort
from kernelevo_evaluator.executor import ExecutorFault
from kernelevo_evaluator.lanes import tools
from kernelevo_evaluator.lanes.carrying import Carrying, runner_limits
from kernelevo_evaluator.lanes.lane import Lane
from kernelevo_evaluator.lanes.referee_process import Services
from kernelevo_evaluator.messages.codec import encode
from kernelevo_evaluator.messages.referee import HostCall
from kernelevo_evaluator.messages.runner import DescribeKernels, Kernels, Traced, TracedPart, decode_reply
from kernelevo_evaluator.referee.counters import METRICS, REGISTERS, SHARES, TIME, read_counters
from kernelevo_evaluator.referee.deep import of_profiler, of_sanitizer
from kernelevo_evaluator.referee.sanitizer import MOST_FAULTS, read_sanitizer
from kernelevo_evaluator.runner.observing import described

RELAXED = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])

MEMCHECK = """\
hello from the candidate
========= COMPUTE-SANITIZER
========= Program hit cudaErrorInvalidValue (error 1) due to "invalid argument" on CUDA API call to cudaLaunchKernel.
=========
========= Invalid __global__ write of size 4 bytes
=========     at beyond+0x160 in /tmp/kernelevo-x/candidate.py:12
=========     by thread (31,0,0) in block (4095,0,0)
=========     Address 0x7fb6f1400000 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7fb6f13fc000 of size 16384 bytes
=========
========= Invalid __global__ write of size 4 bytes
=========     at beyond+0x160 in /tmp/kernelevo-x/candidate.py:12
=========     by thread (32,0,0) in block (4095,0,0)
=========     Address 0x7fb6f1400004 is out of bounds
=========
========= ERROR SUMMARY: 3 errors
"""
RACECHECK = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at late(float const*, float*)+0x70 in late.cu:21
=========     and Read access at late(float const*, float*)+0xa0 in late.cu:26 [508 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"


def test_what_memcheck_says():
    read = read_sanitizer(MEMCHECK)
    assert read.complete and read.count == 3
    launch, write = read.faults
    assert launch.describe() == "cudaLaunchKernel failed, and nobody looked: invalid argument (cudaErrorInvalidValue)"
    assert write.describe() == (
        "invalid global write of 4 bytes at beyond+0x160 by thread (31,0,0) in block (4095,0,0), out of bounds"
    )


def test_what_racecheck_says():
    (race,) = read_sanitizer(RACECHECK).faults
    assert race.code == "data_race"
    assert "a write at late(float const*, float*)+0x70" in race.what and "a read at late(" in race.what


def test_faults_become_findings():
    check, findings = of_sanitizer("memcheck", MEMCHECK, "")
    assert check.ran and check.faults == 3
    assert [finding.code for finding in findings] == ["launch_failed", "memory_fault"]
    assert not any(finding.refuses for finding in findings)


def test_a_fault_counts_though_the_call_failed():
    check, findings = of_sanitizer("memcheck", MEMCHECK, "the candidate was killed")
    assert check.ran and findings


@pytest.mark.parametrize(
    ("output", "trouble", "why"),
    [
        ("", "compute-sanitizer is not installed here", "not installed"),
        (CLEAN, "the candidate did not finish within the limit", "did not finish"),
        ("========= COMPUTE-SANITIZER\n", "", "before it said"),
        ("========= Error: No supported CUDA device\n", "", "No supported CUDA device"),
        ("nothing of the kind\n", "", "before it said"),
    ],
)
def test_a_run_that_came_to_nothing_says_why(output, trouble, why):
    check, findings = of_sanitizer("racecheck", output, trouble)
    assert not check.ran and not findings
    assert why in check.message


def test_a_clean_run():
    check, findings = of_sanitizer("memcheck", CLEAN, "")
    assert check.ran and not check.faults and not findings


_TOOL_LINES = st.sampled_from([*MEMCHECK.splitlines(), *RACECHECK.splitlines(), *CLEAN.splitlines()])


@RELAXED
@given(st.lists(_TOOL_LINES | st.text(max_size=80) | st.text(max_size=80).map(lambda t: f"========= {t}"), max_size=40))
def test_whatever_is_written_is_read(lines):
    """It may be made up: nothing fails, nothing grows, and whoever wrote no fault has none."""
    output = "\n".join(lines)
    read = read_sanitizer(output)
    assert len(read.faults) <= MOST_FAULTS
    assert read.count >= len(read.faults)
    check, findings = of_sanitizer("memcheck", output, "")
    assert all(len(finding.message) <= 1000 for finding in findings) and len(check.message) <= 1000
    assert not check.faults or findings


# --- Nsight Compute


def table(*rows, header=None, units=None):
    names = ["ID", "Process ID", "Kernel Name", *METRICS]
    lines = [header or names, units or ["", "", "", "ns", "%", "%", "%", "%", "register/thread"], *rows]
    return "==PROF== Connected to process 7\n" + "\n".join(",".join(f'"{x}"' for x in line) for line in lines) + "\n"


def row(name, ns="2,000", memory="50", compute="10.5", occupancy="75", hits="30", registers="40"):
    return ["0", "7", name, ns, memory, compute, occupancy, hits, registers]


def test_the_order_of_the_metrics_is_that_of_the_table():
    assert (TIME, *SHARES.values(), REGISTERS) == METRICS


def test_counters_by_kernel():
    counted = read_counters(table(row("rows"), row("other", ns="500"), row("rows", ns="6,000", memory="70")))
    assert counted.launches == 3 and not counted.trouble
    rows, other = counted.counters
    assert (rows.kernel, rows.count, rows.total_us, rows.registers) == ("rows", 2, 8.0, 40)
    assert rows.memory_share == pytest.approx((2 * 0.5 + 6 * 0.7) / 8)
    assert rows.compute_share == pytest.approx(0.105)
    assert (other.kernel, other.total_us) == ("other", 0.5)


def test_a_metric_that_the_device_does_not_have_is_left_out():
    counted = read_counters(table(row("rows", hits="n/a", registers="")))
    assert counted.counters[0].l2_hit_share is None and counted.counters[0].registers is None


@pytest.mark.parametrize(
    ("output", "why"),
    [
        (
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n",
            "does not let the device's counters be read",
        ),
        ("==WARNING== No kernels were profiled.\n", "no kernel"),
        ("==ERROR== Failed to find metric x\n", "Failed to find metric"),
        ("", "no table"),
        (table(header=["ID", "a"], units=["", ""]), "another form"),
        (table(row("rows", ns="-3")), "another form"),
        (table(row("rows"), units=["", "", "", "furlongs", "", "", "", "", ""]), "another form"),
        (table(), "no kernel"),
        ('say "ID",' + table(row("rows")).partition("\n")[2][5:], "no table"),
        ("head\n… 70000 bytes cut …\ntail", "more than is kept"),
    ],
)
def test_without_a_table_it_says_why(output, why):
    counted = read_counters(output)
    assert why in counted.trouble and not counted.counters


@RELAXED
@given(st.text(max_size=300), st.lists(st.lists(st.text(max_size=12), min_size=9, max_size=9), max_size=6))
def test_whatever_stands_in_the_table_is_read(text, rows):
    for output in (text, '"ID",' + text, table(*[[x.replace('"', "").replace("\n", "") for x in r] for r in rows])):
        counted = read_counters(output)
        assert bool(counted.trouble) != bool(counted.counters)
        for one in counted.counters:
            assert one.count >= 1 and one.total_us >= 0
            assert all(s is None or 0 <= s <= 1 + 1e-9 for s in (one.memory_share, one.compute_share, one.occupancy))


def trace(*parts):
    return Traced(nonce=1, wall_us=9.0, parts=tuple(TracedPart(name=n, us=1.0, count=c) for n, c in parts))


def test_launches_beside_the_trace():
    output = table(row("rows"), row("rows"), row("other"))
    check, findings, counters = of_profiler(output, "", trace(("rows", 2), ("other", 1), ("Memcpy DtoD", 4)))
    assert check.ran and not check.faults and not findings and len(counters) == 2
    check, findings, _ = of_profiler(output, "", trace(("rows", 1)))
    assert check.faults == 1 and [finding.code for finding in findings] == ["launches_differ"]
    check, findings, _ = of_profiler(output, "", None)
    assert check.ran and not findings
    check, findings, counters = of_profiler(output, "it died", None)
    assert not check.ran and check.message == "it died" and not counters


# --- Triton's kernels


class CompiledKernel:
    """As Triton's, as far as it is read."""

    def __init__(self, **changes):
        given = {"name": "rows", "num_warps": 4, "num_stages": 2, "shared": 2048}
        self.metadata = type("Metadata", (), given)()
        self.hash, self.kernel, self.n_regs, self.n_spills = "ab" * 32, b"cubin", 40, 3
        self.__dict__.update(changes)


CompiledKernel.__module__ = "triton.compiler.compiler"


def test_what_triton_compiled():
    never_loaded = CompiledKernel(hash="cd" * 32)
    del never_loaded.n_regs, never_loaded.n_spills
    found = described([1, CompiledKernel(), CompiledKernel(), never_loaded, CompiledKernel(metadata=None), "text"])
    assert [(k.digest[:2], k.registers, k.shared_memory_bytes, k.spill_bytes) for k in found] == [
        ("ab", 40, 2048, 12),
        ("cd", None, 2048, None),
    ]
    assert found[0].name == "rows (num_warps=4, num_stages=2)"
    many = [CompiledKernel(hash=f"{number:064x}") for number in range(200)]
    assert len(described(many)) == 64
    reply = Kernels(nonce=3, kernels=tuple(found))
    assert decode_reply(encode(reply)) == reply


# --- A runner under a tool

STAND_IN = 'echo "========= COMPUTE-SANITIZER"; "$@"; echo "========= ERROR SUMMARY: 0 errors"'


@pytest.fixture
def stand_in(monkeypatch):
    """A program that starts what it is given and writes as the sanitizer does: what is real is all the rest."""
    monkeypatch.setattr(
        "kernelevo_evaluator.lanes.carrying.find_tool",
        lambda name: tools.Tool(name=name, argv=("/bin/sh", "-c", STAND_IN, "sh"), environment={"WATCHED": "yes"}),
    )


@pytest.mark.asyncio(loop_scope="session")
async def test_a_runner_under_a_tool(bench, stand_in):
    """It comes up, takes the candidate, answers, ends by itself, and all that was written comes back."""
    lane = bench.executor._lanes[0]
    source = HONEST + "\nimport os\nprint('printed', os.environ.get('WATCHED'), flush=True)\n"
    carrying = Carrying(lane, await bench.job(source), bench.executor._environment(lane), bench.tell)
    try:
        runner = await carrying._fresh("candidate", "memcheck")
        assert runner.watched
        await runner.channel.send(encode(DescribeKernels(nonce=5)))
        assert decode_reply(await runner.channel.receive()) == Kernels(nonce=5, kernels=())
        services = Services(lane.quiet, {"candidate": runner}, carrying._fresh, bench.tell)
        reply, _ = await services.answer(HostCall(what="report", runner="candidate"))
        text = reply.payload.decode()
        assert "printed yes" in text
        check, findings = of_sanitizer("memcheck", text, "")
        assert check.ran and not findings
        reply, (_,) = await services.answer(HostCall(what="fresh", runner="candidate", tool="racecheck"))
        assert reply.ok and not services.endings, "what a tool wrote is not what the candidate printed"
    finally:
        await carrying._end_runners()


@pytest.mark.asyncio(loop_scope="session")
async def test_a_tool_that_is_not_there_ends_nothing(bench):
    """The referee is told why; the same failure without a tool is a fault."""
    lane = bench.executor._lanes[0]
    runner = await lane.pool.take(runner_limits(LIMITS))

    async def fresh(name, tool):
        raise ExecutorFault("no such tool")

    services = Services(lane.quiet, {"candidate": runner}, fresh, bench.tell)
    try:
        reply, fds = await services.answer(HostCall(what="fresh", runner="candidate", tool="memcheck"))
        assert not reply.ok and reply.error == "no such tool" and not fds
        with pytest.raises(ExecutorFault):
            await services.answer(HostCall(what="fresh", runner="candidate"))
    finally:
        await lane.pool.forget(runner)


def test_tools_of_a_host(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    monkeypatch.setattr(tools, "cuda_root", lambda: None)
    with pytest.raises(tools.ToolMissing, match="CUDA's toolkit"):
        tools.find_tool("ncu")
    monkeypatch.setattr(tools, "cuda_root", lambda: tmp_path)
    with pytest.raises(tools.ToolMissing, match="compute-sanitizer is not installed"):
        tools.find_tool("memcheck")
    for program in ("ncu", "compute-sanitizer"):
        (tmp_path / "bin" / program).write_text("#!/bin/sh\n")
    found = tools.find_tool("racecheck")
    assert found.argv[0] == str(tmp_path / "bin" / "compute-sanitizer") and "racecheck" in found.argv
    assert found.environment == {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    assert str(tmp_path) in {mount.target for mount in found.mounts}
    assert ",".join(METRICS) in tools.find_tool("ncu").argv


@pytest.mark.parametrize(
    ("setting", "effort", "profile", "gpu", "deep"),
    [
        ("final", Effort.FINAL, False, True, True),
        ("final", Effort.FULL, True, True, True),
        ("final", Effort.FULL, False, True, False),
        ("final", Effort.FINAL, True, False, False),
        ("profile", Effort.FINAL, False, True, False),
        ("profile", Effort.FULL, True, True, True),
        ("never", Effort.FINAL, True, True, False),
    ],
)
@pytest.mark.asyncio(loop_scope="session")
async def test_when_tools_are_asked(bench, setting, effort, profile, gpu, deep):
    lane = Lane(None, None, None, cores=None, reference_limits=None, gpu=object() if gpu else None, deep_checks=setting)
    assert lane._goes_deep(replace(await bench.job(HONEST), effort=effort, profile=profile)) is deep
