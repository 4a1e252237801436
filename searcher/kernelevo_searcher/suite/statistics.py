"""What many speedups come to: shares of problems, and a mean with its interval. Pure arithmetic."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelevo_api.types import Ratio

__all__ = ["HOLDS", "LEVELS", "Mean", "Share", "fast_p", "geometric_mean"]

LEVELS = (0.0, 0.8, 1.0, 1.5, 2.0)
"""Speedups p of which fast_p is reported."""
_RESAMPLES = 4000
_CONFIDENCE = 0.95

HOLDS = (
    "The interval of a geometric mean is a percentile bootstrap over problems (95 %): it holds what would change with another "
    "draw of problems like these, their searches and their measurements included. It does not hold what all of them share: the "
    "device, the settings, and errors that every measurement has. With fewer than about ten problems it is too narrow."
)


@dataclass(frozen=True, slots=True)
class Share:
    """How many of the problems reach a speedup."""

    level: float
    count: int
    """By the measured value; KernelBench's fast_p is this over `of`."""
    certain: int
    """Of these, the ones whose whole interval lies above the level."""
    of: int

    @property
    def value(self) -> float | None:
        """The share, from 0 to 1; absent where there are no problems."""
        return self.count / self.of if self.of else None


@dataclass(frozen=True, slots=True)
class Mean:
    """A geometric mean, with its interval."""

    value: float
    low: float | None
    high: float | None
    """Absent with fewer than two problems."""
    count: int


def fast_p(ratios: Sequence[Ratio | None], level: float) -> Share:
    """The share of problems with a correct kernel that is more than `level` times as fast.

    Args:
        ratios: one a problem; absent where no kernel was verified, which counts as not fast at any level.
    """
    reached = [ratio for ratio in ratios if ratio is not None and (ratio.value > level or level == 0.0)]
    certain = [ratio for ratio in reached if ratio.low > level or level == 0.0]
    return Share(level, len(reached), len(certain), len(ratios))


def geometric_mean(values: Sequence[float]) -> Mean | None:
    """The geometric mean of positive numbers; absent where there are none. Equal numbers give equal intervals."""
    logs = [math.log(value) for value in values if value > 0 and math.isfinite(value)]
    if not logs:
        return None
    value = math.exp(math.fsum(logs) / len(logs))
    if len(logs) < 2:
        return Mean(value, None, None, len(logs))
    rng = random.Random(len(logs))  # noqa: S311 - an interval that others can compute again
    means = sorted(sum(rng.choices(logs, k=len(logs))) / len(logs) for _ in range(_RESAMPLES))
    tail = (1.0 - _CONFIDENCE) / 2
    low, high = means[int(tail * _RESAMPLES)], means[math.ceil((1.0 - tail) * _RESAMPLES) - 1]
    return Mean(value, math.exp(low), math.exp(high), len(logs))
