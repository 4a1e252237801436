"""What a block of calls costs beside its calls.

A block's outside time holds two constants. *Around* the runner's own clock lie the messages, the wake-up of a frozen process and
what is read before the clock stops; *within* it lie the first launch and the last synchronisation. Both are measured where
nobody gains by lying about them: on the reference, which is timed beside the candidate anyway. A candidate's own clock, and its
own slope over blocks of different lengths, would be claims.

*Around*: the reference's outside time less its own, block by block. It moves with the host, so that it is taken close in time to
the block that it is subtracted from, and its noise is in the ratios of the pairs.
*Within*: the intercept of the reference's own time over blocks of two lengths. Small and steady, so that it is one figure for the
whole timing; its error is stated, since no ratio of pairs holds it.
"""

from __future__ import annotations

import statistics
from collections import deque
from typing import TYPE_CHECKING

from kernelevo_evaluator.referee.statistics import median_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelevo_evaluator.referee.clock import Ring


def around(outside_us: float, own_us: float) -> float:
    """Microseconds of a block of the reference outside of its own clock. At most half of it: more would say that nothing was
    measured."""
    return min(max(outside_us - own_us, 0.0), 0.5 * outside_us)


def per_call(block_us: float, overhead_us: float, calls: int) -> float:
    """Microseconds of a call of a block. Never below half of what the block took: a call takes something."""
    return max(block_us - overhead_us, 0.5 * block_us) / calls


class Within:
    """The constant in the reference's own time of a block, in microseconds. Nothing while it is not measured, as on a processor,
    which calls without delay."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._long: list[float] = []
        self._short: list[float] = []

    def add(self, long_us: float, short_us: float) -> None:
        """The reference's own times of a block of `calls` and of one of `short`, close in time."""
        self._long.append(long_us)
        self._short.append(short_us)

    @property
    def _intercepts(self) -> list[float]:
        n, m = self._ring.calls, self._ring.short
        return [(n * short - m * long) / (n - m) for long, short in zip(self._long, self._short, strict=True)]

    @property
    def block_us(self) -> float:
        """Of one block: the median intercept, between nothing and half of the shortest block."""
        if not self._short:
            return 0.0
        return min(max(statistics.median(self._intercepts), 0.0), 0.5 * min(self._short))

    @property
    def error_us(self) -> float:
        """Standard error of `block_us`; never more than the figure could be wrong by."""
        if not self._short:
            return 0.0
        return min(median_error(self._intercepts), 0.5 * min(self._short))


class Answers:
    """How soon a reference's answer was there, beside its own time, over the timings of one lane.

    A process wakes, reads, answers and is read in 60-80 us on an H200 host. For some seconds now and then, by whatever else runs
    on the same machine, it takes 100 us more; and then a candidate's process takes 30-80 us longer than the reference's, where
    both are alike otherwise. A pair whose reference was disturbed so is taken again.
    """

    def __init__(self, disturbed_us: float) -> None:
        """`disturbed_us`: an answer that comes so much later than usual is disturbed; infinite where that says nothing."""
        self._disturbed_us = disturbed_us
        self._usual: deque[float] = deque(maxlen=_TIMINGS)

    def add(self, answers_us: Sequence[float]) -> None:
        """One timing's."""
        if answers_us:
            self._usual.append(_soon(answers_us))

    def late(self, answers_us: Sequence[float | None], fewest: int) -> tuple[set[int], float]:
        """Which pairs of a timing do not count, and microseconds of a block by which those that do may be wrong.

        None of them where fewer than `fewest` would be left: then all count, and a candidate may have answered later than the
        reference by as much as the reference did than usual. `None`: a pair that did not look.
        """
        known = [us for us in answers_us if us is not None]
        usual = min([_soon(known), *self._usual])
        late = {number for number, us in enumerate(answers_us) if us is not None and us > usual + self._disturbed_us}
        if len(answers_us) - len(late) >= fewest:
            return late, 0.0
        excess = statistics.median(known) - usual
        return set(), excess if excess > self._disturbed_us else 0.0


_TIMINGS = 32
"""Whose usual answers are remembered: a host that has become slower for good is taken as it is after so many."""


def _soon(answers_us: Sequence[float]) -> float:
    """What undisturbed answers of a timing take: their lower quartile, so that a single odd one sets no standard."""
    ordered = sorted(answers_us)
    return ordered[(len(ordered) - 1) // 4]
