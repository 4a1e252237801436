"""Time by the referee's own clock, of calls that are checked.

A block is one message that starts n calls over slots of fresh content; its clock stops only when secretly sampled slots of that
very block were copied out. Time for a call is the slope between blocks of n and of 2n calls, so that everything which does not
grow with the number of calls (messages, wake-ups, the copies) drops out. While one side runs, the other side's processes are
frozen. A pair is the baseline, the candidate and the baseline again in random order, close in time: its ratio is that of the
baseline's mean to the candidate, and the two baselines give the measurement of the baseline against itself.
"""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import torch

from kernelevo_api.types import Ratio, Timing, TimingMode, Trust, Verdict
from kernelevo_evaluator.referee import effort as settings
from kernelevo_evaluator.referee.classes import DECLARED
from kernelevo_evaluator.referee.compare import describe
from kernelevo_evaluator.referee.outcome import Decided
from kernelevo_evaluator.referee.reference import TIMING_RING, Rings
from kernelevo_evaluator.referee.statistics import median_ratio, relative_half_width, widen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelevo_api.types import TimingPolicy
    from kernelevo_evaluator.referee.checks import Subject
    from kernelevo_evaluator.referee.effort import Plan
    from kernelevo_evaluator.referee.fresh import Mixer, Recipe
    from kernelevo_evaluator.referee.host import Host
    from kernelevo_evaluator.referee.reference import Reference
    from kernelevo_evaluator.referee.runners import Runner


class Side(Protocol):
    """What is timed: a reference or a candidate."""

    runner: Runner

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
    """How the ring is used: `calls` for a short block, twice as many for a long one, one slot to warm up on."""

    calls: int
    rounds: int
    """Blocks of one kind whose times are added up, where memory does not allow one long enough."""

    @property
    def slots(self) -> int:
        """Slots in the ring."""
        return 3 * self.calls + 1

    @property
    def warm(self) -> int:
        """The slot for calls that are dropped, just after a switch."""
        return 3 * self.calls

    @staticmethod
    def choose(call_seconds: float, slot_bytes: int, cache_bytes: int, memory_bytes: int) -> Ring:
        """A ring of more than twice the last-level cache, with blocks of `BLOCK_SECONDS`, within memory."""
        most = max(1, min(settings.RING_SLOTS, memory_bytes // slot_bytes) // 3)
        for_cache = -(-2 * cache_bytes // slot_bytes) // 3 + 1
        for_time = max(1, round(settings.BLOCK_SECONDS / call_seconds))
        calls = min(most, max(for_cache, for_time, 2))
        rounds = max(1, min(4, round(for_time / calls)))
        return Ring(calls, rounds)


@dataclass(slots=True)
class Samples:
    """Raw outside times of one call, in microseconds."""

    candidate: list[float] = field(default_factory=list)
    baseline: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    against_itself: list[float] = field(default_factory=list)
    claimed: list[float] = field(default_factory=list)
    discarded: int = 0


@dataclass(frozen=True, slots=True)
class Sampled:
    """A timed call that will be checked: private copies of its output slot and of its input slot after the call."""

    slot: int
    outputs: torch.Tensor
    inputs: torch.Tensor


@dataclass(frozen=True, slots=True)
class Block:
    """One measurement of a side: microseconds of one call."""

    outside_us: float
    claimed_us: float
    sampled: list[Sampled]


class Clock:
    """Times blocks of a side over its ring."""

    def __init__(self, host: Host, mixer: Mixer, ring: Ring) -> None:
        self._host = host
        self._mixer = mixer
        self.ring = ring
        self._random = random.SystemRandom()
        self._copies: list[torch.Tensor] = []

    def prepare(self, side: Side) -> Rings:
        """Map the timing ring and call every address once, untimed, on content that is not used again."""
        rings = side.map_ring(TIMING_RING, self.ring.slots)
        self.renew(rings)
        side.runner.run(TIMING_RING, range(self.ring.slots))
        return rings

    def renew(self, rings: Rings) -> list[Recipe]:
        """Fill every slot with content that no call has seen, and poison the outputs."""
        recipes = [self._mixer.draw() for _ in range(self.ring.slots)]
        for slot, recipe in enumerate(recipes):
            self._mixer.make(recipe, rings.inputs.views(slot))
            rings.outputs.poison(slot)
        return recipes

    def content(self, recipe: Recipe) -> list[torch.Tensor]:
        """A private copy of a content."""
        return self._mixer.content(recipe)

    def block(self, side: Side, rings: Rings, sample: bool) -> Block:
        """Thaw a side, time a short and a long block in random order, and freeze it again."""
        calls = self.ring.calls
        order = list(range(3 * calls))
        start = self._random.randrange(3 * calls)
        order = order[start:] + order[:start]
        parts = [("short", order[:calls]), ("long", order[calls:])]
        self._random.shuffle(parts)
        outside, claimed = {}, {}
        sampled: list[Sampled] = []
        self._host.thaw(side.runner.name)
        try:
            # The calls just after a switch are dropped.
            side.runner.run(TIMING_RING, (self.ring.warm,))
            for name, slots in parts:
                # Both blocks copy as many slots, so that the copies drop out of the slope.
                chosen = self._random.sample(slots, min(settings.SAMPLES, calls))
                outside[name], claimed[name] = self._timed(side, rings, slots, chosen)
                if sample:
                    sampled += [
                        Sampled(slot, copy.clone(), rings.inputs.copy_out(slot))
                        for slot, copy in zip(chosen, self._copies, strict=False)
                    ]
        finally:
            self._host.freeze(side.runner.name)
        return Block(
            outside_us=(outside["long"] - outside["short"]) / calls / 1000,
            claimed_us=(claimed["long"] - claimed["short"]) / calls / 1000,
            sampled=sampled,
        )

    def _timed(self, side: Side, rings: Rings, slots: Sequence[int], chosen: Sequence[int]) -> tuple[int, int]:
        while len(self._copies) < len(chosen):
            self._copies.append(torch.zeros(rings.outputs.layout.nbytes, dtype=torch.uint8))
        start = time.perf_counter_ns()
        done = side.runner.run(TIMING_RING, slots)
        for slot, into in zip(chosen, self._copies, strict=False):
            rings.outputs.copy_out(slot, into)
        return time.perf_counter_ns() - start, done.claimed_ns


@dataclass(slots=True)
class Session:
    """One timing of a candidate against a baseline. Both sides are frozen when it begins, and when it ends."""

    host: Host
    reference: Reference
    subject: Subject
    baseline: Side
    clock: Clock
    plan: Plan
    rings: Rings
    """The candidate's."""
    baseline_rings: Rings
    trusted_baseline: bool
    """False where the baseline is a candidate too, which must not meet the same content twice."""
    samples: Samples = field(default_factory=Samples)

    def measure(self, bound_speedup: float | None) -> bool:
        """Take pairs until the interval is narrow, the plan is exhausted or the bound is out of reach (then True)."""
        began = time.monotonic()
        while True:
            self._pair()
            taken = len(self.samples.ratios)
            if taken + self.samples.discarded >= self.plan.maximum_pairs:
                return False
            if taken < self.plan.minimum_pairs:
                continue
            ratio = self.ratio()
            if bound_speedup is not None and ratio.high < bound_speedup:
                return True
            if relative_half_width(ratio) <= settings.TARGET_HALF_WIDTH:
                return False
            if time.monotonic() - began > self.plan.timing_seconds:
                return False

    def ratio(self) -> Ratio:
        """The paired ratio with its widened interval."""
        return widen(median_ratio(self.samples.ratios), self.against_itself(), settings.PROCESS_SPREAD)

    def against_itself(self) -> Ratio:
        """The baseline measured against itself."""
        return median_ratio(self.samples.against_itself)

    def drift(self) -> float | None:
        """The baseline now that the candidate is gone, over the baseline before; a second look before it counts as faster."""
        before = statistics.median(self.samples.baseline)
        after: list[float] = []
        for pairs in (self.plan.minimum_pairs, 2 * self.plan.minimum_pairs):
            measured = [self._measure(self.baseline, self.baseline_rings, renew=True)[0] for _ in range(pairs)]
            after += [value for value in measured if value > 0]
            if after and statistics.median(after) / before > 1 - settings.DISPUTED_DRIFT:
                break
        return statistics.median(after) / before if after else None

    def _pair(self) -> None:
        sequence = [self.baseline, self.subject, self.baseline]
        random.SystemRandom().shuffle(sequence)
        baselines: list[float] = []
        candidate = claimed = 0.0
        for side in sequence:
            if side is self.subject:
                candidate, claimed = self._measure(side, self.rings, renew=True)
            else:
                renew = not baselines or not self.trusted_baseline
                baselines.append(self._measure(side, self.baseline_rings, renew=renew)[0])
        if min(*baselines, candidate) <= 0:
            # Noise larger than the block: the slope says nothing.
            self.samples.discarded += 1
            return
        baseline = sum(baselines) / 2
        self.samples.ratios.append(baseline / candidate)
        self.samples.against_itself.append(baselines[0] / baselines[1])
        self.samples.candidate.append(candidate)
        self.samples.baseline.append(baseline)
        self.samples.claimed.append(claimed)

    def _measure(self, side: Side, rings: Rings, *, renew: bool) -> tuple[float, float]:
        """Microseconds of one call of a side, by the outside clock and by its own; what was sampled of a candidate is checked."""
        outside = claimed = 0.0
        rounds = self.clock.ring.rounds
        for turn in range(rounds):
            recipes = self.clock.renew(rings) if renew or turn else []
            block = self.clock.block(side, rings, sample=side is self.subject)
            outside += block.outside_us / rounds
            claimed += block.claimed_us / rounds
            if block.sampled:
                self._check(block.sampled, recipes)
        return outside, claimed

    def _check(self, sampled: Sequence[Sampled], recipes: Sequence[Recipe]) -> None:
        """Timed calls are checked calls."""
        for sample in sampled:
            content = self.clock.content(recipes[sample.slot])
            self.host.thaw(self.reference.runner.name)
            try:
                expected = self.reference.expected_outputs(content)
            finally:
                self.host.freeze(self.reference.runner.name)
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
    session: Session, policy: TimingPolicy, floor_us: float | None, drift: float | None, *, stopped_at_bound: bool
) -> Timing:
    """The evidence, as a part of the evaluation."""
    samples = session.samples
    speedup = session.ratio()
    remarks = []
    if drift is not None and drift < session.against_itself().low:
        # The faster baseline counts.
        speedup = replace(speedup, value=speedup.value * drift, low=speedup.low * drift, high=speedup.high * drift)
        remarks.append(f"the baseline ran faster once the candidate was gone: the ratio was multiplied by {drift:.3f}")
    if samples.discarded:
        remarks.append(f"{samples.discarded} pairs discarded: the host's noise was larger than a block")
    if session.clock.ring.rounds > 1:
        remarks.append(f"memory allows no longer block: {session.clock.ring.rounds} were added up for each measurement")
    return Timing(
        policy=policy,
        mode=TimingMode.CALLS,
        trust=Trust.BOUNDED,
        speedup=speedup,
        candidate_us=statistics.median(samples.candidate),
        baseline_us=statistics.median(samples.baseline),
        baseline_against_itself=session.against_itself(),
        baseline_drift=drift,
        candidate_samples_us=tuple(samples.candidate),
        baseline_samples_us=tuple(samples.baseline),
        claimed_candidate_us=statistics.median(samples.claimed),
        floor_us=floor_us,
        remarks=tuple(remarks),
        stopped_at_bound=stopped_at_bound,
        calls_per_block=session.clock.ring.calls,
        ring_slots=session.clock.ring.slots,
    )
