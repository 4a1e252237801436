"""Speedups from times by the referee's own clock, of calls that are checked.

What does not grow with the number of calls of a block is measured on the *reference* (see `overhead`) and subtracted from the
others' outside times. The reference itself is timed by its own clock, which the messages and wake-ups do not disturb.

While one side runs, the other side's processes are frozen. A pair is the baseline and the candidate in random order, close in
time. Its ratio is that of the baseline to the candidate; the baseline's time and the overhead are the mean of the pair's own and
of the nearest one of its neighbours', so that the candidate lies between two as a rule. Baselines of neighbours give the
measurement of the baseline against itself.
"""

from __future__ import annotations

import itertools
import math
import random
import secrets
import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernelevo_api.types import Ratio, Timing, TimingMode, Trust, Verdict
from kernelevo_evaluator.referee import effort as settings
from kernelevo_evaluator.referee.classes import DECLARED
from kernelevo_evaluator.referee.noise import disturbed
from kernelevo_evaluator.referee.outcome import Decided
from kernelevo_evaluator.referee.overhead import Within
from kernelevo_evaluator.referee.probes import PROBES
from kernelevo_evaluator.referee.samples import Measured, Pair, Samples, samples_of
from kernelevo_evaluator.referee.statistics import (
    median_quotient,
    quartile_gap,
    relative_half_width,
)

if TYPE_CHECKING:
    from kernelevo_api.types import TimingPolicy
    from kernelevo_evaluator.referee.checks import Subject
    from kernelevo_evaluator.referee.clock import Block, Clock, Sampled, Side
    from kernelevo_evaluator.referee.effort import Plan
    from kernelevo_evaluator.referee.fresh import Unseen
    from kernelevo_evaluator.referee.host import Host
    from kernelevo_evaluator.referee.reference import Reference
    from kernelevo_evaluator.referee.rings import Rings


@dataclass(frozen=True, slots=True)
class Lone:
    """The candidate's call among others of its block, and alone in it, in microseconds.

    The inputs of a whole block lie there when it begins, and are made of parts that other calls saw. Calls that are quick only
    there shared their work or kept it, and no user's calls can: so the slower figure counts, and a gap that is too large for any
    honest reason disputes the timing.
    """

    among_others_us: float
    alone_us: float
    error_us: float
    """Standard error of `alone_us`."""
    pairs: int

    @property
    def counts(self) -> bool:
        """Whether the lone call is surely the slower one."""
        return self.alone_us - settings.LONE_ERRORS * self.error_us > (1 + settings.LONE_GAP) * self.among_others_us

    @property
    def disputes(self) -> bool:
        """Whether it is slower by more than any honest candidate's."""
        allowed = settings.LONE_DISPUTED * self.among_others_us + settings.LONE_DISPUTED_US + 4 * self.error_us
        return self.pairs >= settings.LONE_PAIRS and self.alone_us > allowed

    @property
    def unsure(self) -> bool:
        """Whether it may be slower by more than noise explains, and it is not known whether it is."""
        return not self.counts and self.alone_us + 2 * self.error_us > settings.UNSURE * self.among_others_us

    def slower(self, speedup: Ratio) -> Ratio:
        """A speedup by calls among others, as one by lone calls."""
        return Ratio(
            value=speedup.value * self.among_others_us / self.alone_us,
            low=speedup.low * self.among_others_us / (self.alone_us + 2 * self.error_us),
            high=speedup.high * self.among_others_us / max(self.among_others_us, self.alone_us - 2 * self.error_us),
            confidence=speedup.confidence,
        )


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
    unseen: Unseen
    """What lone calls of the candidate are given."""
    _pairs: list[Pair] = field(default_factory=list)
    _kept: list[Sampled] = field(default_factory=list)
    _within: Within = field(init=False)
    _lone: list[tuple[float, float]] = field(default_factory=list)
    """Microseconds of lone calls, of the baseline and the candidate."""
    _looked_at: int = 0
    _checking: float = 0.0
    """Seconds spent on comparing, which is no part of the time that the plan gives."""

    def __post_init__(self) -> None:
        self._within = Within(self.clock.ring)

    def measure(self, bound_speedup: float | None) -> bool:
        """Take pairs until the interval is narrow, the plan is exhausted or the bound is out of reach (then True).

        What is left to be checked afterwards is `finish`'s.
        """
        with self.clock.spent.on("timed blocks"):
            return self._take_pairs(bound_speedup)

    def _take_pairs(self, bound_speedup: float | None) -> bool:
        began = time.monotonic()
        while True:
            self._pair()
            if len(self._pairs) < self.plan.minimum_pairs:
                continue
            samples = self.samples()
            ratio, taken = samples.speedup(), len(samples.ratios)
            if bound_speedup is not None and ratio.high < bound_speedup:
                return True
            if taken >= self.plan.maximum_pairs or relative_half_width(ratio) <= settings.TARGET_HALF_WIDTH:
                return False
            if time.monotonic() - began - self._checking > self.plan.timing_seconds:
                return False

    def remember(self) -> None:
        """Let later timings know how soon the reference answered in this one."""
        self.reference.space.answers.add([pair.reference.answer_us for pair in self._pairs if pair.reference])

    def finish(self) -> None:
        """End the candidate's processes, and compare meanwhile what it left."""
        self._refuse_late()
        with self.host.running(self.reference.runner.name):
            self.host.kill_soon(self.subject.runner.name)
            self._check()
            self.host.settle()

    def samples(self) -> Samples:
        """Times of one call, with the overhead as it is known now."""
        return samples_of(
            self._pairs,
            calls=self.clock.ring.calls,
            within=self._within,
            space=self.reference.space,
            own_clock=self.baseline is self.reference,
            fewest=self.plan.minimum_pairs,
        )

    def lone(self) -> Lone | None:
        """What a call of the candidate takes when it is alone in its block; none where such blocks say nothing.

        Taken from what a lone call of the candidate costs more than one of the baseline: the overhead drops out. Of both the
        lower quartile counts, since whatever disturbs a call makes it longer.
        """
        if not self._lone:
            return None
        gap, error = quartile_gap([call for _, call in self._lone], [call for call, _ in self._lone])
        samples = self.samples()
        return Lone(
            statistics.median(samples.candidate), statistics.median(samples.baseline) + gap, error, len(self._pairs)
        )

    def drift(self) -> Ratio:
        """The baseline now that the candidate is gone, over the baseline before, both by the host's own pace.

        A second look is taken before it counts as faster.
        """
        with self.clock.spent.on("drift"):
            return self._drift()

    def _drift(self) -> Ratio:
        before = [pair.baseline.paced for pair in self._pairs]
        after: list[float] = []
        first = min(self.plan.minimum_pairs, self.reference.space.drift_blocks)
        for blocks in (first, 2 * first):
            after += [self._measure(self.baseline, self.baseline_rings).paced for _ in range(blocks)]
            drift = median_quotient(after, before)
            if drift.value > 1 - settings.DISPUTED_DRIFT:
                break
        return drift

    def _pair(self) -> None:
        candidate_first = bool(secrets.randbits(1))
        # Read outside of what is timed, and not between the two: how long each side stood still stays equal.
        before = self._waited_us()
        if candidate_first:
            candidate = self._measure(self.subject, self.rings)
        baseline = self._measure(self.baseline, self.baseline_rings)
        if not candidate_first:
            candidate = self._measure(self.subject, self.rings)
        waited = max(0.0, self._waited_us() - before) / self.clock.ring.rounds
        taken = len(self._pairs)
        looks = taken < settings.CALIBRATED_PAIRS or taken % 4 == 0
        reference = baseline if self.baseline is self.reference else None
        if reference is None and looks:
            reference = self._measure(self.reference, self.reference_rings)
        if reference and looks and self.reference.space.asynchronous:
            short = self.clock.block(self.reference, self.reference_rings, calls=self.clock.ring.short)
            self._within.add(reference.claimed_us, short.claimed_us)
        if self.reference.space.lone_calls and taken < settings.LONE_PAIRS:
            with self.clock.spent.on("lone calls"):
                self._call_alone()
        self._pairs.append(Pair(baseline, candidate, reference, candidate_first, waited))

    def _waited_us(self) -> float:
        """By the baseline until now, for a core. On a GPU the thread that launches counts: no other has a part in a call."""
        return self.host.waited_us(self.baseline.runner.name, first_only=self.reference.space.device.type == "cuda")

    def _call_alone(self) -> None:
        """A few lone calls of both sides, in turn; the candidate's on inputs of which it has seen no part."""
        with self.clock.spent.on("fresh inputs"):
            contents = self.unseen.draw(settings.UNSEEN_SECONDS)
        checked = random.SystemRandom().sample(range(len(contents)), min(settings.SAMPLES, len(contents)))
        for number, content in enumerate(contents):
            baseline = self.clock.lone(self.baseline, self.baseline_rings)
            candidate = self.clock.lone(self.subject, self.rings, content=content, sample=number in checked)
            self._lone.append((baseline.outside_us, candidate.outside_us))
            for sample in candidate.sampled:
                self._keep(sample)

    def _measure(self, side: Side, rings: Rings) -> Measured:
        """A block of a side, or the mean of several; some calls of a candidate are checked."""
        outside = claimed = answered = host = 0.0
        rounds = self.clock.ring.rounds
        for _ in range(rounds):
            if side is self.subject:
                self._refuse_late()
            block = self.clock.block(side, rings, calls=self.clock.ring.calls, sample=side is self.subject)
            outside += block.outside_us / rounds
            claimed += block.claimed_us / rounds
            answered += block.answered_us / rounds
            host += block.host_us / rounds
            if side is self.subject:
                self._look_at(block)
        # A GPU keeps its own pace, and a sweep of its cache is too short to tell it.
        pace = host if self.reference.space.device.type == "cpu" else 1.0
        return Measured(outside, claimed, answered - claimed, outside / pace)

    def _refuse_late(self) -> None:
        """What the clock saw of the candidate's last block is there still, now that nothing of it can be under way."""
        late = self.rings.late
        if late:
            raise Decided(
                Verdict.OUTPUT_MISMATCH,
                self.subject.runner.stage,
                f"outputs changed after the calls were said to be done: {late} of {PROBES} bytes that were read then were others "
                "later. All work of a call must be on the current stream, or joined with it, before it returns",
            )

    def _look_at(self, block: Block) -> None:
        """Keep some of a block's calls, to be checked: first those that the clock waited for.

        Many while the session is young, fewer once it has seen enough; how many is nothing that a candidate could act on, since
        each of its calls is as likely to be among them as any other of its block. They are checked together, as many as memory
        holds: each check disturbs what is timed next.
        """
        wanted = settings.LATER_SAMPLES
        if self._looked_at < self.plan.samples:
            wanted = max(wanted, math.ceil(self.plan.samples / (self.plan.minimum_pairs * self.clock.ring.rounds)))
        others = (self.clock.look(self.rings, block, at) for at in block.others)
        for sample in itertools.islice(itertools.chain(block.sampled, others), wanted):
            self._keep(sample)

    def _keep(self, sample: Sampled) -> None:
        self._looked_at += 1
        self._kept.append(sample)
        if sum(kept.outputs.nbytes + kept.inputs.nbytes for kept in self._kept) > self.reference.space.kept_bytes:
            self._check()

    def _check(self) -> None:
        """Timed calls are checked calls. All sides are frozen."""
        kept, self._kept = self._kept, []
        began = time.monotonic()
        with self.clock.spent.on("checked calls"), self.host.running(self.reference.runner.name):
            for sample in kept:
                self._check_one(sample)
        self._checking += time.monotonic() - began

    def _check_one(self, sample: Sampled) -> None:
        content = self.clock.content(sample.recipe)
        if not self.subject.agrees(DECLARED.name, sample.outputs, self.reference.own_outputs(content)):
            mismatch = self.subject.judge(DECLARED.name, sample.outputs, self.reference.answer(content))
            if mismatch is not None:
                raise Decided(
                    Verdict.OUTPUT_MISMATCH,
                    self.subject.runner.stage,
                    f"right when it was checked, wrong when it was timed: {self.subject.explain(mismatch)}",
                    correctness=self.subject.tally.correctness(mismatch),
                )
        self.subject.check_inputs(content, sample.inputs)
        self.subject.tally.timed_calls += 1


def timing_of(
    session: Session,
    policy: TimingPolicy,
    floor_us: float | None,
    drift: Ratio,
    lone: Lone | None,
    *,
    stopped_at_bound: bool,
) -> Timing:
    """The evidence, as a part of the evaluation."""
    samples = session.samples()
    ring = session.clock.ring
    remarks = []
    if drift.high < 1:
        # Nothing of a frozen candidate can run, so this is the host's doing until it is large enough to be disputed.
        remarks.append(f"the baseline ran {1 / drift.value - 1:.0%} faster once the candidate was gone")
    speedup, candidate_us = samples.speedup(), statistics.median(samples.candidate)
    if lone is not None and lone.counts:
        speedup, candidate_us = lone.slower(speedup), lone.alone_us
        remarks.append(
            f"a call takes {lone.among_others_us:.0f} us among others and {lone.alone_us:.0f} us alone: the slower figure counts"
        )
    speedup, told = disturbed(speedup, lone=lone, drift=drift, undisturbed=samples.without_waiting())
    remarks += told
    if ring.rounds > 1:
        remarks.append(f"memory allows no longer block: {ring.rounds} were added up for each measurement")
    return Timing(
        policy=policy,
        mode=TimingMode.GRAPH_REPLAY if session.clock.replays else TimingMode.CALLS,
        trust=Trust.BOUNDED,
        speedup=speedup,
        candidate_us=candidate_us,
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
