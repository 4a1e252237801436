"""What outlives what: cancelled evaluations, a referee or a reference that dies, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from core_bench import HONEST, PROBLEM

from kernelevo_api.types import Stage, Verdict
from kernelevo_evaluator.executor import ExecutorFault

pytestmark = pytest.mark.asyncio(loop_scope="session")

HANGS = HONEST.replace("return", "import time; time.sleep(0 if self.training else 600)\n        return")
HANGS_AT_IMPORT = HONEST + "\nimport time\ntime.sleep(600)\n"
BUILDS = (
    HONEST
    + """
from torch.utils.cpp_extension import load_inline
load_inline("kernel", "template <int N, int M> struct G { typedef typename G<N - 1, 2 * M>::t a;"
    "typedef typename G<N - 1, 2 * M + 1>::t b; typedef a t; }; template <int M> struct G<0, M> { typedef int t; };"
    "G<26, 1>::t x;", is_python_module=False, no_implicit_headers=True)
"""
)


def lane(bench):
    return bench.executor._lanes[0]


def referee_pid(bench):
    return lane(bench)._referee._process.pid


def tree(pid):
    """Processes below a process."""
    found, waiting = [], [pid]
    while waiting:
        try:
            for task in Path(f"/proc/{waiting.pop()}/task").iterdir():
                below = [int(child) for child in (task / "children").read_text().split()]
                found += below
                waiting += below
        except OSError:
            continue
    return found


async def settled(bench):
    """The number of processes once every spare stands and nothing else does."""
    pool = bench.executor._lanes[0].pool
    while pool._starting or len(pool._spares) < pool._wanted:
        await asyncio.sleep(0.05)
    return len(tree(os.getpid()))


async def when(bench, stage, job):
    """Start a job, and return its task once it has come to a stage and stands there."""
    bench.progress.clear()
    task = asyncio.create_task(bench.executor.evaluate(job, bench.tell))
    while not any(seen is stage for seen, _ in bench.progress):
        await asyncio.sleep(0.01)
        assert not task.done(), task.result().message
    await asyncio.sleep(0.3)
    return task


@pytest.mark.parametrize(
    ("source", "stage"),
    [(HANGS_AT_IMPORT, Stage.BUILD), (BUILDS, Stage.BUILD), (HANGS, Stage.PREPARE)],
    ids=["import", "compiler", "forward"],
)
async def test_cancelling_ends_every_process(bench, source, stage):
    await bench.works()
    task = await when(bench, stage, await bench.job(source))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert bench.executor._lanes[0].claims == 0
    assert not bench.executor._lanes[0].exclusive.locked()
    assert not bench.executor._lanes[0].loader.builder._flights
    await bench.works()


async def test_a_referee_that_dies_in_a_job_is_our_fault_and_replaced(bench):
    await bench.works()
    old = referee_pid(bench)
    task = await when(bench, Stage.PREPARE, await bench.job(HANGS))
    os.kill(old, signal.SIGKILL)
    with pytest.raises(ExecutorFault):
        await task
    await bench.works()
    assert referee_pid(bench) != old


async def test_a_referee_that_dies_between_jobs_is_not_noticed(bench):
    await bench.works()
    os.kill(referee_pid(bench), signal.SIGKILL)
    await lane(bench)._referee._process.wait()
    await bench.works()


async def test_a_reference_that_dies_between_jobs_is_replaced(bench):
    await bench.works()
    for runner in lane(bench)._references.values():
        await runner.process.kill()
    await bench.works()


async def test_a_reference_that_dies_in_a_job(bench):
    """The evaluation cannot blame the candidate; the next one has a new reference."""
    await bench.works()
    task = await when(bench, Stage.PREPARE, await bench.job(HANGS))
    for runner in lane(bench)._references.values():
        await runner.process.kill()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await bench.works()


async def test_two_at_once_take_turns(bench):
    results = await asyncio.gather(bench.judge(HONEST), bench.judge(HONEST), bench.judge("x = 1\n"))
    assert [r.verdict for r in results] == [Verdict.PASSED, Verdict.PASSED, Verdict.WRONG_INTERFACE]


async def test_nothing_is_left_behind(bench, count_descriptors):
    """After many evaluations, good and bad, there are as many processes and descriptors as before, here and in the referee."""
    crash = HONEST.replace("return", "import os; os._exit(1)\n        return")
    liar = HONEST.replace("return", "import os; os.write(3, b'x' * 100)\n        return")
    bad_shape = HONEST.replace("min=0)", "min=0)[:1]")
    for source in (HONEST, crash, liar, bad_shape):
        await bench.judge(source)
    processes = await settled(bench)
    descriptors, of_referee = count_descriptors(), count_descriptors(referee_pid(bench))
    referee = referee_pid(bench)
    for _ in range(2):
        for source in (HONEST, crash, liar, bad_shape, HANGS_AT_IMPORT[:0] + "x = 1\n"):
            await bench.judge(source)
    assert await settled(bench) <= processes
    assert count_descriptors() <= descriptors
    assert referee_pid(bench) == referee
    assert count_descriptors(referee) <= of_referee
    assert PROBLEM
