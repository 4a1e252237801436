"""A disturbed host widens an interval, whatever it disturbs, and never counts for the candidate."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelevo_api.types import Ratio
from kernelevo_evaluator.referee.noise import disturbed
from kernelevo_evaluator.referee.timing import Lone, Samples
from kernelevo_evaluator.referee.waiting import waited_us

SPEEDUP = Ratio(value=2.0, low=1.8, high=2.2, confidence=0.95)
SAME = Ratio(value=1.0, low=0.97, high=1.03, confidence=0.95)
SURE = Lone(100.0, 104.0, 12.0, 9)


def after(*, speedup=SPEEDUP, lone=SURE, drift=SAME, undisturbed=1.0):
    return disturbed(speedup, lone=lone, drift=drift, undisturbed=undisturbed)


def test_a_quiet_host_leaves_an_interval_as_it_is():
    assert after() == (SPEEDUP, ())
    assert after(lone=None) == (SPEEDUP, ())
    ratio, remarks = after(undisturbed=0.99)
    assert not remarks
    assert ratio.low == pytest.approx(1.8 * 0.99)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        # Lone calls that cannot tell whether a block's calls are one.
        ({"lone": Lone(100.0, 180.0, 60.0, 9)}, "is not known"),
        ({"lone": Lone(100.0, 90.0, 70.0, 5)}, "is not known"),
        # A baseline of two threads on a core that others use: three of five milliseconds were waiting.
        ({"undisturbed": 0.4}, "waited for a core"),
        # A candidate that slows the baseline, looked for with a noisy clock.
        ({"drift": Ratio(value=0.9, low=0.4, high=1.6, confidence=0.95)}, "once the candidate was gone"),
        ({"speedup": Ratio(value=19.35, low=2.77, high=66.38, confidence=0.95)}, "no speedup is claimed"),
        ({"speedup": Ratio(value=5.36, low=1.45, high=45.23, confidence=0.95)}, "no speedup is claimed"),
    ],
)
def test_what_could_not_be_excluded_is_counted_in(what, said):
    ratio, remarks = after(**what)
    assert ratio.low <= 1.0
    assert ratio.value == what.get("speedup", SPEEDUP).value
    assert any(said in remark for remark in remarks)


def test_lone_calls_that_count_already_are_not_counted_twice():
    lone = Lone(100.0, 200.0, 10.0, 9)
    assert lone.counts and not lone.unsure
    assert after(speedup=lone.slower(SPEEDUP), lone=lone)[0] == lone.slower(SPEEDUP)


_RATIO = st.floats(0.01, 100.0)


@settings(max_examples=200, deadline=None)
@given(
    st.tuples(_RATIO, _RATIO, _RATIO).map(sorted), st.tuples(_RATIO, _RATIO, _RATIO).map(sorted), _RATIO, _RATIO, _RATIO
)
def test_noise_never_narrows_an_interval(speedup, drift, alone, error, undisturbed):
    given_, gone = (Ratio(low=low, value=value, high=high, confidence=0.95) for low, value, high in (speedup, drift))
    ratio, remarks = after(speedup=given_, lone=Lone(1.0, alone, error, 9), drift=gone, undisturbed=undisturbed)
    assert ratio.low <= given_.low and ratio.value == given_.value and ratio.high == given_.high
    assert 0 < ratio.low <= ratio.value <= ratio.high
    assert len(remarks) <= 4
    assert ratio.low <= 1.0 or given_.high <= 4 * given_.low


def test_what_waiting_could_have_cost():
    samples = Samples(ratios=[2.0, 4.0, 8.0], undisturbed=[1.0, 2.0, 8.0])
    assert samples.without_waiting() == pytest.approx(0.5)


_SPIN = "import os, time\nos.sched_setaffinity(0, {int(os.environ['CORE'])})\nprint('on', flush=True)\nwhile True: pass"


def test_threads_that_share_a_core_wait_for_it():
    if waited_us([os.getpid()]) is None:
        pytest.skip("this kernel does not tell how long threads wait")
    core = str(min(os.sched_getaffinity(0)))
    both = [
        subprocess.Popen([sys.executable, "-S", "-c", _SPIN], env={"CORE": core}, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    try:
        for process in both:
            assert process.stdout is not None
            process.stdout.readline()
        pids = [process.pid for process in both]
        before = waited_us(pids)
        began = time.monotonic()
        while time.monotonic() - began < 60.0 and waited_us(pids) - before < 20_000:
            time.sleep(0.02)
        assert waited_us(pids) - before >= 20_000
        assert waited_us(pids, first_only=True) >= before + 20_000, "each has one thread"
    finally:
        for process in both:
            process.kill()
            process.communicate()
    assert waited_us(pids) is None and waited_us(pids, first_only=True) is None, (
        "of processes that are gone nothing is known"
    )
