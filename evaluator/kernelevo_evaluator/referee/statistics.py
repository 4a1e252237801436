"""Medians of paired ratios, and their intervals."""

from __future__ import annotations

import math
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


def widen(ratio: Ratio, against_itself: Ratio, process_spread: float) -> Ratio:
    """Widen an interval by what the baseline shows against itself, and by the steady spread between processes.

    The half-widths of independent sources add in squares; a bias of the baseline against itself is added as it is.
    `process_spread` is relative: two processes of the same code differ steadily by where their memory lies.
    """
    bias = abs(math.log(against_itself.value))
    # Half the spread of B1/B2: each pair's baseline is the mean of two, and the ratio's own interval holds its noise already.
    wander = (math.log(against_itself.high) - math.log(against_itself.low)) / 4
    center = math.log(ratio.value)

    def side(width: float) -> float:
        return math.sqrt(width**2 + wander**2 + math.log1p(process_spread) ** 2) + bias

    return Ratio(
        value=ratio.value,
        low=math.exp(center - side(center - math.log(ratio.low))),
        high=math.exp(center + side(math.log(ratio.high) - center)),
        confidence=ratio.confidence,
    )


def relative_half_width(ratio: Ratio) -> float:
    """Half the interval's width over its value."""
    return (ratio.high - ratio.low) / 2 / ratio.value
