"""Medians of paired ratios, and their intervals."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from kernelevo_api.types import Ratio

if TYPE_CHECKING:
    from collections.abc import Sequence

CONFIDENCE = 0.95
_RESAMPLES = 2000


def median_ratio(ratios: Sequence[float], seed: int = 0) -> Ratio:
    """Median of ratios of pairs with its bootstrap interval, over pairs. At least one ratio."""
    values = np.log(np.asarray(ratios, dtype=np.float64))
    generator = np.random.default_rng(seed)
    draws = generator.integers(0, len(values), size=(_RESAMPLES, len(values)))
    medians = np.median(values[draws], axis=1)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(medians, [tail, 1 - tail])
    return Ratio(
        value=math.exp(float(np.median(values))),
        low=math.exp(float(low)),
        high=math.exp(float(high)),
        confidence=CONFIDENCE,
    )


def median_quotient(above: Sequence[float], below: Sequence[float], seed: int = 0) -> Ratio:
    """Median of one sample over the median of another, unpaired, with its bootstrap interval."""
    generator = np.random.default_rng(seed)

    def medians(values: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        sample = np.log(np.asarray(values, dtype=np.float64))
        drawn: np.ndarray[tuple[int], np.dtype[np.float64]] = np.median(
            sample[generator.integers(0, len(sample), size=(_RESAMPLES, len(sample)))], axis=1
        )
        return drawn

    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(medians(above) - medians(below), [tail, 1 - tail])
    return Ratio(
        value=float(np.median(above) / np.median(below)),
        low=math.exp(float(low)),
        high=math.exp(float(high)),
        confidence=CONFIDENCE,
    )


def small_sample_factor(count: int) -> float:
    """How much wider an interval from `count` values must be than one from many: Student's quantile over the normal one.

    The bootstrap of a median of few values is too narrow by about this (seen by simulation). Cornish-Fisher expansion.
    """
    z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    freedom = max(1, count - 1)
    t = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return t / z


def widen(ratio: Ratio, against_itself: Ratio, process_spread: float, count: int) -> Ratio:
    """Widen an interval by what the baseline shows against itself, by the steady spread between processes, and for few pairs.

    The half-widths of independent sources add in squares; a bias of the baseline against itself is added as it is.
    `process_spread` is relative: two processes of the same code differ steadily by where their memory lies. `count` pairs were
    taken.
    """
    bias = abs(math.log(against_itself.value))
    # Half the spread of B1/B2: each pair's baseline is the mean of two, and the ratio's own interval holds its noise already.
    wander = (math.log(against_itself.high) - math.log(against_itself.low)) / 4
    center = math.log(ratio.value)
    factor = small_sample_factor(count)

    def side(width: float) -> float:
        return math.sqrt((factor * width) ** 2 + wander**2 + math.log1p(process_spread) ** 2) + bias

    return Ratio(
        value=ratio.value,
        low=math.exp(center - side(center - math.log(ratio.low))),
        high=math.exp(center + side(math.log(ratio.high) - center)),
        confidence=ratio.confidence,
    )


def relative_half_width(ratio: Ratio) -> float:
    """Half the interval's width over its value."""
    return (ratio.high - ratio.low) / 2 / ratio.value
