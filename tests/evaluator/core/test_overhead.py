"""What a block costs beside its calls, and what its error does to an interval."""

from __future__ import annotations

import dataclasses
import math
import random
import statistics
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from kernelevo_api.types import Effort
from kernelevo_evaluator.referee.clock import Block, Ring
from kernelevo_evaluator.referee.effort import PLANS
from kernelevo_evaluator.referee.overhead import Answers, Within, around, per_call
from kernelevo_evaluator.referee.spent import Spent
from kernelevo_evaluator.referee.statistics import median_error
from kernelevo_evaluator.referee.timing import Session

if TYPE_CHECKING:
    from collections.abc import Callable

CALLS = 256
AROUND_US, AROUND_MOVES_US = 300.0, 60.0
WITHIN_US = 40.0


class FakeClock:
    """Blocks whose times are known: a call's time by the side, what lies around a block with noise, what lies within it."""

    def __init__(self, seed: int, within_us: float) -> None:
        self.ring = Ring(CALLS, 1)
        self.replays = False
        self.spent = Spent()
        self.blocks: list[tuple[str, int]] = []
        self._random = random.Random(seed)
        self._within_us = within_us
        self.answer_us = 60.0

    def block(self, side: Any, rings: object, *, calls: int, sample: bool = False) -> Block:
        self.blocks.append((side.name, calls))
        own = self._within_us + calls * side.call_us * self._random.gauss(1, 0.001) + side.dawdles(calls)
        outside = own + AROUND_US + abs(self._random.gauss(0, AROUND_MOVES_US))
        return Block(
            outside_us=outside,
            claimed_us=0.0 if side.lies else own,
            answered_us=own + self.answer_us,
            host_us=100.0,
            sampled=[],
            others=[],
            recipes={},
        )


def side(
    name: str,
    call_us: float,
    *,
    lies: bool = False,
    dawdles: Callable[[int], float] | None = None,
    device: str = "cuda",
) -> Any:
    return SimpleNamespace(
        name=name,
        runner=SimpleNamespace(name=name),
        call_us=call_us,
        lies=lies,
        dawdles=dawdles or (lambda calls: 0.0),
        space=SimpleNamespace(
            asynchronous=device == "cuda", lone_calls=False, device=SimpleNamespace(type=device), answers=Answers(45.0)
        ),
    )


def timed(
    reference: Any,
    candidate: Any,
    baseline: Any = None,
    *,
    seed: int = 0,
    within_us: float = WITHIN_US,
    clock: Any = None,
) -> Any:
    clock = clock or FakeClock(seed, within_us)
    nothing: Any = SimpleNamespace(late=0, waited_us=lambda name, first_only: 0.0)
    session = Session(
        host=nothing,
        reference=reference,
        subject=candidate,
        baseline=baseline or reference,
        clock=clock,
        plan=PLANS[Effort.FULL],
        rings=nothing,
        baseline_rings=nothing,
        reference_rings=nothing,
        unseen=nothing,
    )
    session.measure(None)
    return session


def test_a_call_never_takes_less_than_nothing():
    """On a host so busy that a block seems all overhead."""
    assert around(10_000.0, 100.0) == 5000.0
    assert around(100.0, 300.0) == 0.0
    assert per_call(1000.0, 5000.0, 30) == pytest.approx(500.0 / 30)
    assert per_call(1e6, 5000.0, 30) == pytest.approx((1e6 - 5000.0) / 30)


def test_nothing_lies_within_until_it_is_measured():
    within = Within(Ring(30, 1))
    assert (within.block_us, within.error_us) == (0.0, 0.0)
    within.add(10_000.0, 9_900.0)
    assert within.block_us == pytest.approx(4950.0)
    assert within.error_us == pytest.approx(4950.0), "one look says nothing about its error"


@pytest.mark.parametrize("faster", [1.0, 4.0, 20.0])
def test_both_constants_drop_out(faster: float):
    speedup = timed(side("reference", 30.0), side("candidate", 30.0 / faster)).samples().speedup()
    assert speedup.low <= faster <= speedup.high
    assert speedup.value == pytest.approx(faster, rel=0.05)


@pytest.mark.parametrize("faster", [1.0, 4.0])
def test_the_interval_holds_the_truth_as_often_as_it_says(faster: float, monkeypatch: pytest.MonkeyPatch):
    """An overhead that is subtracted from all blocks alike and whose error is in no interval held it in 14 of 20."""
    held, halves = 0, []
    for seed in range(60):
        monkeypatch.setattr("secrets.randbits", random.Random(seed).getrandbits)
        speedup = timed(side("reference", 30.0), side("candidate", 30.0 / faster), seed=seed).samples().speedup()
        held += speedup.low <= faster <= speedup.high
        halves.append((speedup.high - speedup.low) / 2 / speedup.value)
    assert held >= 55
    assert statistics.median(halves) < 0.02, "not by being wide"


def test_nothing_of_the_candidates_own_account_counts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("secrets.randbits", lambda bits: 0)
    honest = timed(side("reference", 30.0), side("candidate", 30.0)).samples()
    lying = timed(side("reference", 30.0), side("candidate", 30.0, lies=True)).samples()
    assert lying.speedup() == honest.speedup()
    assert lying.claimed != honest.claimed


def test_dawdling_in_some_of_its_blocks_gains_nothing():
    session = timed(side("reference", 30.0), side("candidate", 30.0, dawdles=lambda calls: 4000.0 * (calls < CALLS)))
    assert session.samples().speedup().value == pytest.approx(1.0, rel=0.02)
    assert {calls for name, calls in session.clock.blocks if name == "candidate"} == {CALLS}


def test_against_another_candidate_both_are_timed_from_outside():
    session = timed(side("reference", 90.0), side("candidate", 10.0, lies=True), side("other", 30.0, lies=True))
    speedup = session.samples().speedup()
    assert speedup.low <= 3.0 <= speedup.high
    assert speedup.value == pytest.approx(3.0, rel=0.05)
    looked = sum(name == "reference" and calls == CALLS for name, calls in session.clock.blocks)
    assert 0 < looked < len(session.samples().ratios), "the reference is looked at now and then only"


def test_a_processor_needs_no_short_blocks():
    session = timed(side("reference", 100.0, device="cpu"), side("candidate", 50.0), within_us=0.0)
    assert {calls for _, calls in session.clock.blocks} == {CALLS}
    assert session.samples().speedup().value == pytest.approx(2.0, rel=0.02)


def test_the_error_of_a_median():
    assert median_error([3.0]) == math.inf
    assert median_error([3.0, 3.0, 3.0]) == 0.0
    generator = random.Random(1)
    medians = [statistics.median(generator.gauss(0, 1) for _ in range(15)) for _ in range(2000)]
    stated = [median_error([generator.gauss(0, 1) for _ in range(15)]) for _ in range(2000)]
    # Not less than the truth, and half as much again at most: from few values an interval has to be wider than from many.
    assert 1.0 <= statistics.median(stated) / statistics.stdev(medians) <= 1.5


def test_short_blocks_are_an_eighth():
    assert [Ring(calls, 1).short for calls in (3, 8, 64, 1024)] == [1, 1, 8, 128]


def test_a_disturbed_pair_does_not_count():
    answers = Answers(45.0)
    assert answers.late([60, 61, 62, 200, None], 3) == ({3}, 0.0)
    assert answers.late([60, 61, 62, 200, None], 5) == (set(), 0.0), "too few would be left, and the usual one is quiet"


def test_a_timing_that_was_disturbed_throughout_is_told_by_earlier_ones():
    answers = Answers(45.0)
    disturbed: list[float | None] = [180.0, 185.0, 190.0]
    assert answers.late(disturbed, 3) == (set(), 0.0), "nothing is known of this host yet"
    answers.add([60.0, 62.0, 300.0])
    assert answers.late(disturbed, 3) == (set(), 125.0)
    for _ in range(32):
        answers.add([180.0, 185.0, 190.0])
    assert answers.late(disturbed, 3) == (set(), 0.0), "the host has become slower for good"


def test_pairs_of_a_disturbed_host_are_taken_again():
    """Its candidate answers later than its reference."""
    reference, candidate = side("reference", 30.0), side("candidate", 10.0)
    clock: Any = FakeClock(0, WITHIN_US)
    taken = clock.block

    def block(of: Any, rings: object, *, calls: int, sample: bool = False) -> Block:
        late = 120.0 if len(clock.blocks) < 40 else 0.0
        one = taken(of, rings, calls=calls, sample=sample)
        more = late + (200.0 if late and of is candidate else 0.0)
        return dataclasses.replace(one, outside_us=one.outside_us + more, answered_us=one.answered_us + more)

    clock.block = block
    reference.space.answers.add([60.0] * 9)
    session = timed(reference, candidate, clock=clock)
    samples = session.samples()
    assert len(samples.ratios) < len(session._pairs)
    assert samples.late_us == 0.0
    assert samples.speedup().value == pytest.approx(3.0, rel=0.02)
    session.remember()
    assert reference.space.answers.late([60.0], 1) == (set(), 0.0)
