"""Times of one call, from what was measured of pairs of blocks: overhead subtracted, disturbed pairs left out."""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernelevo_evaluator.referee import effort as settings
from kernelevo_evaluator.referee.overhead import around, per_call
from kernelevo_evaluator.referee.statistics import median_error, median_ratio, widen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelevo_api.types import Ratio
    from kernelevo_evaluator.referee.overhead import Within
    from kernelevo_evaluator.referee.spaces import Space

ERRORS = 1.96
"""Standard errors in half an interval of 95 %."""


@dataclass(slots=True)
class Samples:
    """Times of one call in microseconds, overhead subtracted, pair by pair."""

    candidate: list[float] = field(default_factory=list)
    baseline: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    repeats: list[float] = field(default_factory=list)
    """Of the baselines of neighbouring pairs."""
    undisturbed: list[float] = field(default_factory=list)
    """Ratios with the baseline's times less what its threads waited for a core."""
    claimed: list[float] = field(default_factory=list)
    steady_us: float = 0.0
    """Standard error of what was subtracted from all calls of both sides alike: no spread of the ratios tells it."""
    shared_us: float = 0.0
    """The same of what neighbouring pairs share of that which was subtracted from the candidate's calls only."""
    late_us: float = 0.0
    """By how much the candidate's calls may be wrong since the host was disturbed all the time."""

    def speedup(self) -> Ratio:
        """The paired ratio with its widened interval."""
        baseline, candidate = statistics.median(self.baseline), statistics.median(self.candidate)
        error = math.hypot(self.steady_us * (1 / candidate - 1 / baseline), self.shared_us / candidate)
        steady = math.hypot(math.log1p(settings.PROCESS_SPREAD), ERRORS * error, self.late_us / candidate)
        return widen(median_ratio(self.ratios), self.against_itself(), steady, len(self.ratios))

    def against_itself(self) -> Ratio:
        """The baseline measured against itself."""
        return median_ratio(self.repeats)

    def without_waiting(self) -> float:
        """What a speedup has to be multiplied by if all waiting for cores was time that the baseline lost. At most 1."""
        return math.exp(
            statistics.median(map(math.log, self.undisturbed)) - statistics.median(map(math.log, self.ratios))
        )


@dataclass(frozen=True, slots=True)
class Measured:
    """Microseconds of a block, by the outside clock and by the side's own, and by the host's pace (no unit)."""

    outside_us: float
    claimed_us: float
    answer_us: float
    """Until the answer was there, less the side's own time."""
    paced: float


@dataclass(frozen=True, slots=True)
class Pair:
    """What was measured of one pair, in microseconds for a block."""

    baseline: Measured
    candidate: Measured
    reference: Measured | None
    """The baseline's where the reference is the baseline; otherwise only where it was looked at."""
    candidate_first: bool
    waited: float
    """By the baseline's threads, for a core."""


def samples_of(
    pairs: Sequence[Pair], *, calls: int, within: Within, space: Space, own_clock: bool, fewest: int
) -> Samples:
    """Times of one call in microseconds.

    Args:
        pairs: at least one of which looked at the reference.
        calls: of a block.
        within: what lies within the reference's own time of a block.
        space: where all of them ran.
        own_clock: whether the baseline is the reference, whose own clock counts.
        fewest: so many pairs are left at least when disturbed ones are left out; otherwise all count.
    """
    samples, inside = Samples(), within.block_us
    looks = [pair.reference for pair in pairs]
    late, samples.late_us = space.answers.late([look.answer_us if look else None for look in looks], fewest)
    samples.late_us /= calls
    arounds = [around(look.outside_us, look.claimed_us) if look else None for look in looks]
    known = [us for number, us in enumerate(arounds) if us is not None and number not in late]
    usual = statistics.median(known)
    if not space.asynchronous:
        # What a busy processor adds to one block says nothing of the next.
        arounds = [None] * len(arounds)
    baselines, least = [], []
    for pair, around_us in zip(pairs, arounds, strict=True):
        if own_clock:
            block_us, overhead = pair.baseline.claimed_us, inside
        else:
            block_us, overhead = pair.baseline.outside_us, inside + _or(around_us, usual)
        baselines.append(per_call(block_us, overhead, calls))
        least.append(per_call(max(block_us - pair.waited, 1e-3 * block_us), overhead, calls))
    samples.repeats = [first / second for first, second in itertools.pairwise(baselines)]
    for number, pair in enumerate(pairs):
        if number in late:
            continue
        beside = _neighbour(pairs, number)
        looked_at = (number, beside) if beside not in late else (number,)
        overhead = inside + statistics.fmean(_or(arounds[at], usual) for at in looked_at)
        candidate = per_call(pair.candidate.outside_us, overhead, calls)
        samples.candidate.append(candidate)
        samples.baseline.append(baselines[number])
        samples.ratios.append((baselines[number] + baselines[beside]) / 2 / candidate)
        samples.undisturbed.append((least[number] + least[beside]) / 2 / candidate)
        samples.claimed.append(pair.candidate.claimed_us / calls)
    error = median_error(known)
    if own_clock:
        # Each look counts in two pairs by half: the spread of the pairs holds one half of its variance, and not the other.
        unheld = math.sqrt(0.5) if space.asynchronous else 1.0
        samples.steady_us, samples.shared_us = within.error_us / calls, unheld * error / calls
    else:
        samples.steady_us = math.hypot(within.error_us, error) / calls
    return samples


def _neighbour(pairs: Sequence[Pair], number: int) -> int:
    """Of which pair the baseline lies on the other side of this pair's candidate; at either end of a timing it may lie on the
    same side."""
    wanted = number - 1 if pairs[number].candidate_first else number + 1
    return wanted if 0 <= wanted < len(pairs) else 2 * number - wanted


def _or(known: float | None, usual: float) -> float:
    return usual if known is None else known
