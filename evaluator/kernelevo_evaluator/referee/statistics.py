"""Medians of paired ratios, and their intervals."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from kernelevo_api.types import Ratio

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    _Logs = npt.NDArray[np.float64]

CONFIDENCE = 0.95
_RESAMPLES = 2000


def median_ratio(ratios: Sequence[float], seed: int = 0) -> Ratio:
    """Median of ratios of pairs with its bootstrap interval, over pairs. At least one ratio."""
    return _ratio(float(np.exp(np.median(np.log(ratios)))), _log_medians(ratios, np.random.default_rng(seed)))


def median_quotient(above: Sequence[float], below: Sequence[float], seed: int = 0) -> Ratio:
    """Median of one sample over the median of another, unpaired, with its bootstrap interval. At least one value in each."""
    generator = np.random.default_rng(seed)
    return _ratio(
        float(np.median(above) / np.median(below)),
        _log_medians(above, generator) - _log_medians(below, generator),
    )


def quartile_gap(above: Sequence[float], below: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Lower quartile of one sample less that of another, and its standard error by the bootstrap. At least one value in each."""
    generator = np.random.default_rng(seed)
    drawn = []
    for values in (above, below):
        taken = np.asarray(values, dtype=np.float64)[generator.integers(0, len(values), size=(_RESAMPLES, len(values)))]
        drawn.append(np.quantile(taken, 0.25, axis=1))
    gap = float(np.quantile(above, 0.25) - np.quantile(below, 0.25))
    return gap, float(np.std(drawn[0] - drawn[1]))


def _log_medians(values: Sequence[float], generator: np.random.Generator) -> _Logs:
    """Medians of bootstrap resamples, as logarithms."""
    logs = np.log(np.asarray(values, dtype=np.float64))
    count = len(logs)
    drawn: _Logs = logs[generator.integers(0, count, size=(_RESAMPLES, count), dtype=np.uint16)]
    # A timing asks after every pair. Sorting all of so few values takes a fifth of what numpy's median does.
    drawn.sort(axis=1)
    return (drawn[:, (count - 1) // 2] + drawn[:, count // 2]) / 2


def _ratio(value: float, resampled: _Logs) -> Ratio:
    """A value with the interval between the quantiles of its resampled logarithms."""
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return Ratio(value=value, low=math.exp(float(low)), high=math.exp(float(high)), confidence=CONFIDENCE)


def small_sample_factor(count: int) -> float:
    """How much wider an interval from `count` values must be than one from many: Student's quantile over the normal one.

    The bootstrap of a median of few values is too narrow by about this (seen by simulation). Cornish-Fisher expansion.
    """
    z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    freedom = max(1, count - 1)
    t = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return t / z


def median_error(values: Sequence[float]) -> float:
    """Standard error of a median, by the median absolute deviation; infinite for a single value.

    1.2533 is the ratio of the median's error to the mean's for a normal distribution, 1.4826 that of its standard deviation to
    the median absolute deviation.
    """
    if len(values) < 2:
        return math.inf
    deviation = 1.4826 * float(np.median(np.abs(np.asarray(values) - np.median(values))))
    return small_sample_factor(len(values)) * 1.2533 * deviation / math.sqrt(len(values))


def widen(ratio: Ratio, against_itself: Ratio, steady: float, count: int) -> Ratio:
    """Widen an interval by what the baseline shows against itself, by what is steady within one timing, and for few pairs.

    The half-widths of independent sources add in squares; a bias of the baseline against itself is added as it is.
    `steady` is relative, half a width: two processes of the same code differ steadily by where their memory lies, and what was
    subtracted from all blocks alike is not known exactly. `count` pairs were taken.
    """
    bias = abs(math.log(against_itself.value))
    # Half the spread of B1/B2: each ratio's baseline is the mean of two, and the ratio's own interval holds its noise already.
    wander = (math.log(against_itself.high) - math.log(against_itself.low)) / 4
    center = math.log(ratio.value)
    factor = small_sample_factor(count)

    def side(width: float) -> float:
        return math.sqrt((factor * width) ** 2 + wander**2 + steady**2) + bias

    return Ratio(
        value=ratio.value,
        low=math.exp(center - side(center - math.log(ratio.low))),
        high=math.exp(center + side(math.log(ratio.high) - center)),
        confidence=ratio.confidence,
    )


def relative_half_width(ratio: Ratio) -> float:
    """Half the interval's width over its value."""
    return (ratio.high - ratio.low) / 2 / ratio.value
