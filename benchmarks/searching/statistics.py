"""What many runs say: shares with their intervals, medians, and whether one policy is worse than another on the same seeds."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy

from searching.landscape import NEAR

if TYPE_CHECKING:
    from collections.abc import Sequence

_SHUFFLES = 20_000
_Z = 1.96


@dataclass(frozen=True, slots=True)
class Summary:
    """Of runs of one policy."""

    runs: int
    reached: float
    """Share of the runs that came near the optimum."""
    low: float
    high: float
    """Its 95 % interval, by Wilson's method."""
    median_calls: float
    """Until then; infinite where fewer than half came near."""
    mean_value: float
    """Share of the optimum at the end, mean over runs."""


def calls_to_near(values: Sequence[float]) -> float:
    """Calls until the value is near the optimum; infinite where it never is."""
    return next((float(calls) for calls, value in enumerate(values) if value >= NEAR), math.inf)


def progress(values: Sequence[float]) -> float:
    """Mean over the calls of how near the optimum the search was; what goes beyond near is not counted."""
    return statistics.fmean(min(value, NEAR) / NEAR for value in values)


def summarise(runs: Sequence[Sequence[float]]) -> Summary:
    """Of the values of each run after each call."""
    calls = [calls_to_near(values) for values in runs]
    count, reached = len(calls), sum(map(math.isfinite, calls))
    share = reached / count
    middle = (share + _Z**2 / (2 * count)) / (1 + _Z**2 / count)
    half = _Z * math.sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2)) / (1 + _Z**2 / count)
    return Summary(
        runs=count,
        reached=share,
        low=max(0.0, middle - half),
        high=min(1.0, middle + half),
        median_calls=statistics.median_high(calls),
        mean_value=statistics.fmean(values[-1] for values in runs),
    )


def chance_of_being_worse(ours: Sequence[float], theirs: Sequence[float], seed: int = 0) -> float:
    """How likely ours would fall this far behind, or further, were the two alike: one-sided, by flipping signs of the pairs'
    differences. Small is bad.

    Args:
        ours, theirs: a figure of each pair of runs, the more the better.
    """
    differences = numpy.subtract(ours, theirs)
    if not differences.any():
        return 1.0
    signs = numpy.random.default_rng(seed).choice((-1.0, 1.0), size=(_SHUFFLES, len(differences)))
    shuffled = signs @ differences
    return float((1 + (shuffled <= differences.sum() + 1e-12).sum()) / (_SHUFFLES + 1))


def holm(chances: dict[str, float]) -> dict[str, float]:
    """The same, each as if it were the only one that was looked at (Holm's correction)."""
    corrected: dict[str, float] = {}
    most = 0.0
    for rank, (name, chance) in enumerate(sorted(chances.items(), key=lambda item: item[1])):
        most = max(most, min(1.0, chance * (len(chances) - rank)))
        corrected[name] = most
    return corrected
