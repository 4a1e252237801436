"""Time by the referee's own clock, of calls that are checked.

A block is one message that starts n calls over slots of fresh content; its clock stops only when secretly sampled slots of that
very block were copied out. What does not grow with the number of calls (the messages, the wake-up, the copies) is measured on
the *reference*, from blocks of n and of n/3 calls, and subtracted from both sides alike: a candidate's own slope would be a
claim, since one that dawdles in its short blocks makes its slope as flat as it likes.

While one side runs, the other side's processes are frozen. A pair is the baseline, the candidate and the baseline again in
random order, close in time: its ratio is that of the baseline's mean to the candidate, and the two baselines give the
measurement of the baseline against itself.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch

from kernelevo_api.types import Ratio, Timing, TimingMode, Trust, Verdict
from kernelevo_evaluator.messages.runner import CaptureCalls, CloseRing, Done
from kernelevo_evaluator.referee import effort as settings
from kernelevo_evaluator.referee.classes import DECLARED
from kernelevo_evaluator.referee.compare import describe
from kernelevo_evaluator.referee.outcome import Decided
from kernelevo_evaluator.referee.reference import TIMING_RING, Rings
from kernelevo_evaluator.referee.runners import RunnerFailed, nonce
from kernelevo_evaluator.referee.statistics import median_quotient, median_ratio, relative_half_width, widen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelevo_api.types import TimingPolicy
    from kernelevo_evaluator.referee.checks import Subject
    from kernelevo_evaluator.referee.effort import Plan
    from kernelevo_evaluator.referee.fresh import Mixer, Recipe
    from kernelevo_evaluator.referee.host import Host
    from kernelevo_evaluator.referee.reference import Reference
    from kernelevo_evaluator.referee.runners import Runner
    from kernelevo_evaluator.referee.spaces import Space


class Side(Protocol):
    """What is timed: a reference or a candidate."""

    runner: Runner
    rings: dict[int, Rings]
    trusted: bool
    """Whether it may meet the same content again: a reference has nothing to gain from it."""

    @property
    def may_replay(self) -> bool:
        """Whether its calls are so short, on a device, that graphs are tried."""
        ...

    def close(self) -> None:
        """Give all memory back and close the channel."""
        ...

    def map_ring(self, ring: int, slots: int) -> Rings:
        """Map a ring into the side's runner."""
        ...

    def close_ring(self, ring: int) -> None:
        """Give a ring's memory back."""
        ...


@dataclass(frozen=True, slots=True)
class Ring:
    """How the ring is used: `calls` for a block, each on a slot of its own."""

    calls: int
    rounds: int
    """Blocks whose times are added up for one measurement, where memory does not allow one long enough."""

    @property
    def short(self) -> int:
        """Calls of the short block that calibrates the overhead."""
        return max(1, self.calls // 3)

    @staticmethod
    def choose(call_seconds: float, slot_bytes: int, space: Space) -> Ring:
        """A ring for blocks of the space's length, within its memory."""
        most = max(3, min(space.ring_slots, space.ring_bytes // slot_bytes))
        for_time = max(3, round(space.block_seconds / call_seconds))
        calls = min(most, for_time)
        return Ring(calls, max(1, min(settings.ROUNDS, round(for_time / calls))))


@dataclass(slots=True)
class Samples:
    """Raw outside times of one call in microseconds, overhead subtracted, pair by pair."""

    candidate: list[float] = field(default_factory=list)
    baseline: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    repeats: list[float] = field(default_factory=list)
    """Of each pair's two baselines."""
    claimed: list[float] = field(default_factory=list)

    def speedup(self) -> Ratio:
        """The paired ratio with its widened interval."""
        return widen(median_ratio(self.ratios), self.against_itself(), settings.PROCESS_SPREAD, len(self.ratios))

    def against_itself(self) -> Ratio:
        """The baseline measured against itself."""
        return median_ratio(self.repeats)


@dataclass(frozen=True, slots=True)
class Sampled:
    """A timed call that will be checked: private copies of its output slot and of its input slot after the call."""

    recipe: Recipe
    outputs: torch.Tensor
    inputs: torch.Tensor


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a side: microseconds in all, by the outside clock and by the runner's own.

    `host_us`: what the referee's sweep of the caches took just before, the same work every time: the host's pace.
    """

    outside_us: float
    claimed_us: float
    host_us: float
    sampled: list[Sampled]


@dataclass(frozen=True, slots=True)
class Measured:
    """Microseconds of a block, by the outside clock and by the side's own, and by the host's pace (no unit)."""

    outside_us: float
    claimed_us: float
    paced: float


@dataclass(frozen=True, slots=True)
class _Pair:
    """Raw totals of one pair, in microseconds for a block."""

    baselines: tuple[float, float]
    candidate: float
    claimed: float
    lone_baseline: float
    lone_candidate: float
    """Blocks of a single call."""
    paced: tuple[float, float]
    """The baselines' totals over the host's own pace at that moment."""


class Clock:
    """Times blocks of a side over its ring, each from cold caches."""

    def __init__(self, host: Host, mixer: Mixer, ring: Ring, space: Space) -> None:
        """Before every block twice as much is swept as the space's last-level cache holds."""
        self._host = host
        self._space = space
        swept = 2 * min(space.cache_bytes, settings.CACHE_BYTES)
        self._sweep = torch.zeros(swept // 8, dtype=torch.int64, device=space.device)
        self._mixer = mixer
        self.ring = ring
        self.replays = False
        """Whether blocks are replays of captured graphs."""
        self._random = random.SystemRandom()
        self._copies: list[torch.Tensor] = []

    def prepare(self, side: Side) -> Rings:
        """Map the timing ring and call every address once, untimed, on content that is not used again."""
        rings = side.map_ring(TIMING_RING, self.ring.calls)
        self.renew(rings, range(self.ring.calls))
        rings.places = side.runner.run(TIMING_RING, range(self.ring.calls)).places
        return rings

    def capture(self, sides: Sequence[Side]) -> bool:
        """Map the timing ring of every side and let them capture their blocks in CUDA graphs, which are used from then on.

        False where one of them cannot: they have to be prepared for calls then.
        """
        self.replays = all(self._captured(side) for side in sides)
        return self.replays

    def map(self, sides: Sequence[Side]) -> None:
        """Prepare every side: for replays where its calls are short and all can be captured, for calls otherwise."""
        if not (sides[0].may_replay and self.capture(sides)):
            for side in sides:
                self.prepare(side)

    def release(self, side: Side) -> None:
        """Give a side's timing ring back where it takes much of a device's memory."""
        if self._space.arena and TIMING_RING in side.rings and side.runner.alive:
            side.close_ring(TIMING_RING)
            side.runner.must(CloseRing(nonce=nonce(), ring=TIMING_RING), Done)

    def _captured(self, side: Side) -> bool:
        rings = side.map_ring(TIMING_RING, self.ring.calls)
        self.renew(rings, range(self.ring.calls))
        # What a model does at its first calls does not belong in a graph.
        side.runner.run(TIMING_RING, range(self._rehearsed))
        for calls in dict.fromkeys((self._rehearsed, self.ring.short, self.ring.calls)):
            try:
                side.runner.ask(CaptureCalls(nonce=nonce(), ring=TIMING_RING, calls=calls), Done)
            except RunnerFailed:
                return False
            rings.places = side.runner.run(TIMING_RING, range(calls), replay=True).places
        return True

    @property
    def _rehearsed(self) -> int:
        return min(self._space.rehearsed, self.ring.short)

    def renew(self, rings: Rings, slots: Sequence[int]) -> dict[int, Recipe]:
        """Fill slots with content that no call has seen, and poison their outputs."""
        recipes = {slot: self._mixer.draw() for slot in slots}
        rings.poison_arena()
        for slot, recipe in recipes.items():
            self._mixer.make(recipe, rings.inputs.views(slot))
            if rings.arena is None:
                rings.outputs.poison(slot)
        return recipes

    def sweep(self) -> float:
        """Push everything else out of the caches; returns the microseconds it took, which tell how fast the host is just now."""
        self._space.synchronize()
        began = time.perf_counter_ns()
        self._sweep.add_(1)
        self._space.synchronize()
        return (time.perf_counter_ns() - began) / 1000

    def content(self, recipe: Recipe) -> list[torch.Tensor]:
        """A private copy of a content."""
        return self._mixer.content(recipe)

    def block(self, side: Side, rings: Rings, *, calls: int, sample: bool = False) -> Block:
        """Time one block of a side, which is frozen before and after.

        All content is written while the side stands still, its command waits for it when it is let run, and the clock starts
        before that: there is no moment in which it could work ahead. Nobody waits for the answer to `thaw`, which would come
        when it runs already. `sample`: keep what the clock waited for, to be checked; as many slots are copied either way.
        """
        order = list(range(self.ring.calls))
        start = self._random.randrange(len(order))
        # A graph holds its calls in their order.
        order = (order if self.replays else order[start:] + order[:start])[:calls]
        self._rehearse(side, order)
        recipes = {} if side.trusted and not self._space.renews_all else self.renew(rings, order)
        host = self.sweep()
        chosen = [self._random.randrange(len(order)) for _ in range(settings.SAMPLES)]
        while len(self._copies) < len(chosen):
            self._copies.append(torch.zeros(rings.outputs.layout.nbytes, dtype=torch.uint8, device=self._space.device))
        began = time.perf_counter_ns()
        try:
            done = side.runner.run(
                TIMING_RING, order, lambda: self._host.thaw_soon(side.runner.name), replay=self.replays
            )
            rings.places = done.places
            for call, into in zip(chosen, self._copies, strict=False):
                rings.copy_output(call, order[call], into)
            self._space.synchronize()
            outside = time.perf_counter_ns() - began
        finally:
            self._host.freeze(side.runner.name)
        kept = zip(chosen, self._copies, strict=False) if sample else ()
        return Block(
            outside_us=outside / 1000,
            claimed_us=done.claimed_ns / 1000,
            host_us=host,
            sampled=[
                Sampled(recipes[order[call]], copy.clone(), rings.inputs.copy_out(order[call])) for call, copy in kept
            ],
        )

    def _rehearse(self, side: Side, order: Sequence[int]) -> None:
        """A few calls on content that the side knows already; it is frozen again before new content is written."""
        calls = order[: self._rehearsed]
        if calls:
            try:
                side.runner.run(TIMING_RING, calls, lambda: self._host.thaw_soon(side.runner.name), replay=self.replays)
            finally:
                self._host.freeze(side.runner.name)


class Overhead:
    """What a block costs beside its calls, in microseconds: measured on a reference, the same for both sides."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._long: list[float] = []
        self._short: list[float] = []

    def add(self, long_us: float, short_us: float) -> None:
        """One block of `calls` and one of `short`, close in time."""
        self._long.append(long_us)
        self._short.append(short_us)

    @property
    def block_us(self) -> float:
        """Of one block: the median intercept, between nothing and half of the shortest block."""
        n, m = self._ring.calls, self._ring.short
        intercepts = [(n * s - m * b) / (n - m) for b, s in zip(self._long, self._short, strict=True)]
        return min(max(statistics.median(intercepts), 0.0), 0.5 * min(self._short))


@dataclass(slots=True)
class Session:
    """One timing of a candidate against a baseline. All sides are frozen when it begins, and when it ends."""

    host: Host
    reference: Reference
    subject: Subject
    baseline: Side
    clock: Clock
    plan: Plan
    rings: Rings
    """The candidate's."""
    baseline_rings: Rings
    reference_rings: Rings
    """Where the overhead is measured; the baseline's own where the reference is the baseline."""
    _pairs: list[_Pair] = field(default_factory=list)
    _kept: list[Sampled] = field(default_factory=list)
    _overhead: Overhead = field(init=False)

    def __post_init__(self) -> None:
        self._overhead = Overhead(self.clock.ring)

    def measure(self, bound_speedup: float | None) -> bool:
        """Take pairs until the interval is narrow, the plan is exhausted or the bound is out of reach (then True)."""
        stopped = self._take_pairs(bound_speedup)
        self._check()
        return stopped

    def _take_pairs(self, bound_speedup: float | None) -> bool:
        began = time.monotonic()
        while True:
            self._pair()
            taken = len(self._pairs)
            if taken < self.plan.minimum_pairs:
                continue
            ratio = self.samples().speedup()
            if bound_speedup is not None and ratio.high < bound_speedup:
                return True
            if taken >= self.plan.maximum_pairs or relative_half_width(ratio) <= settings.TARGET_HALF_WIDTH:
                return False
            if time.monotonic() - began > self.plan.timing_seconds:
                return False

    def samples(self) -> Samples:
        """Times of one call, with the overhead as it is known now."""
        samples = Samples()
        for pair in self._pairs:
            first, second = (self._per_call(total) for total in pair.baselines)
            candidate, baseline = self._per_call(pair.candidate), (first + second) / 2
            samples.candidate.append(candidate)
            samples.baseline.append(baseline)
            samples.ratios.append(baseline / candidate)
            samples.repeats.append(first / second)
            samples.claimed.append(pair.claimed / self.clock.ring.calls)
        return samples

    def _per_call(self, block_us: float) -> float:
        # Never below half of the block: an overhead that large would say that nothing was measured.
        return max(block_us - self._overhead.block_us, 0.5 * block_us) / self.clock.ring.calls

    def lone_call_us(self) -> tuple[float, float]:
        """Microseconds of the candidate's call when it is alone in its block, and the standard error of that figure.

        Taken from what a lone call of the baseline costs more or less than one of the candidate: the overhead drops out.
        """
        baseline = statistics.median(self.samples().baseline)
        gaps = [pair.lone_candidate - pair.lone_baseline for pair in self._pairs]
        middle = statistics.median(gaps)
        spread = statistics.median(abs(gap - middle) for gap in gaps)
        # 1.48 turns a median of deviations into a standard deviation, 1.25 the error of a mean into that of a median.
        return baseline + middle, 1.48 * 1.25 * spread / math.sqrt(len(gaps))

    def drift(self) -> Ratio:
        """The baseline now that the candidate is gone, over the baseline before, both by the host's own pace.

        A second look is taken before it counts as faster.
        """
        before = [paced for pair in self._pairs for paced in pair.paced]
        after: list[float] = []
        first = min(self.plan.minimum_pairs, self.reference.space.drift_blocks)
        for blocks in (first, 2 * first):
            after += [self._measure(self.baseline, self.baseline_rings).paced for _ in range(blocks)]
            drift = median_quotient(after, before)
            if drift.value > 1 - settings.DISPUTED_DRIFT:
                break
        return drift

    def _pair(self) -> None:
        sequence = [self.baseline, self.subject, self.baseline]
        random.SystemRandom().shuffle(sequence)
        baselines: list[Measured] = []
        for side in sequence:
            if side is self.subject:
                candidate = self._measure(side, self.rings)
            else:
                baselines.append(self._measure(side, self.baseline_rings))
        first, second = baselines
        taken = len(self._pairs)
        if taken < settings.CALIBRATED_PAIRS or taken % 4 == 0:
            self._calibrate(second.outside_us)
        lone = [math.nan, math.nan]
        if self.reference.space.lone_calls:
            lone = [
                self.clock.block(side, rings, calls=1).outside_us
                for side, rings in ((self.baseline, self.baseline_rings), (self.subject, self.rings))
            ]
        self._pairs.append(
            _Pair(
                (first.outside_us, second.outside_us),
                candidate.outside_us,
                candidate.claimed_us,
                lone[0],
                lone[1],
                (first.paced, second.paced),
            )
        )

    def _calibrate(self, baseline_us: float) -> None:
        """One more look at what a block costs beside its calls; `baseline_us` is the block just measured of the baseline."""
        long = baseline_us
        if self.baseline is not self.reference:
            long = self._measure(self.reference, self.reference_rings).outside_us
        short = self.clock.block(self.reference, self.reference_rings, calls=self.clock.ring.short)
        self._overhead.add(long, short.outside_us)

    def _measure(self, side: Side, rings: Rings) -> Measured:
        """A block of a side, or the mean of several; what was sampled of a candidate is checked."""
        outside = claimed = host = 0.0
        rounds = self.clock.ring.rounds
        for _ in range(rounds):
            block = self.clock.block(side, rings, calls=self.clock.ring.calls, sample=side is self.subject)
            outside += block.outside_us / rounds
            claimed += block.claimed_us / rounds
            host += block.host_us / rounds
            self._keep(block.sampled)
        # A GPU keeps its own pace, and a sweep of its cache is too short to tell it.
        return Measured(outside, claimed, outside / (host if self.reference.space.device.type == "cpu" else 1.0))

    def _keep(self, sampled: Sequence[Sampled]) -> None:
        """Samples are checked together, as many as memory holds: each check disturbs what is timed next."""
        self._kept += sampled
        if sum(sample.outputs.nbytes + sample.inputs.nbytes for sample in self._kept) > self.reference.space.kept_bytes:
            self._check()

    def _check(self) -> None:
        """Timed calls are checked calls."""
        kept, self._kept = self._kept, []
        if not kept:
            return
        self.host.thaw(self.reference.runner.name)
        try:
            self._compare(kept)
        finally:
            self.host.freeze(self.reference.runner.name)

    def _compare(self, sampled: Sequence[Sampled]) -> None:
        for sample in sampled:
            content = self.clock.content(sample.recipe)
            expected = self.reference.expected_outputs(content)
            mismatch = self.subject.judge(DECLARED.name, sample.outputs, expected)
            if mismatch is not None:
                raise Decided(
                    Verdict.OUTPUT_MISMATCH,
                    self.subject.runner.stage,
                    f"right when it was checked, wrong when it was timed: {describe(mismatch)}",
                    correctness=self.subject.tally.correctness(mismatch),
                )
            self.subject.check_inputs(content, sample.inputs)
            self.subject.tally.timed_calls += 1


def timing_of(
    session: Session, policy: TimingPolicy, floor_us: float | None, drift: Ratio, *, stopped_at_bound: bool
) -> Timing:
    """The evidence, as a part of the evaluation."""
    samples = session.samples()
    ring = session.clock.ring
    remarks = []
    if drift.high < 1:
        # Nothing of a frozen candidate can run, so this is the host's doing until it is large enough to be disputed.
        remarks.append(f"the baseline ran {1 / drift.value - 1:.0%} faster once the candidate was gone")
    if ring.rounds > 1:
        remarks.append(f"memory allows no longer block: {ring.rounds} were added up for each measurement")
    return Timing(
        policy=policy,
        mode=TimingMode.GRAPH_REPLAY if session.clock.replays else TimingMode.CALLS,
        trust=Trust.BOUNDED,
        speedup=samples.speedup(),
        candidate_us=statistics.median(samples.candidate),
        baseline_us=statistics.median(samples.baseline),
        baseline_against_itself=samples.against_itself(),
        baseline_drift=drift.value,
        candidate_samples_us=tuple(samples.candidate),
        baseline_samples_us=tuple(samples.baseline),
        claimed_candidate_us=statistics.median(samples.claimed),
        floor_us=floor_us,
        remarks=tuple(remarks),
        stopped_at_bound=stopped_at_bound,
        calls_per_block=ring.calls,
        ring_slots=ring.calls,
    )
