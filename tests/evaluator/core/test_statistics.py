"""Intervals say what they promise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kernelevo_api.types import Ratio
from kernelevo_evaluator.referee.statistics import median_ratio, relative_half_width, widen


def ratio(value, low, high):
    return Ratio(value=value, low=low, high=high, confidence=0.95)


def test_one_ratio_is_enough():
    only = median_ratio([1.5])
    assert (only.value, only.low, only.high) == pytest.approx((1.5, 1.5, 1.5))


def test_order_and_scale():
    values = [1.1, 1.3, 0.9, 1.2, 1.0, 1.05, 1.15]
    found = median_ratio(values)
    assert found.low <= found.value <= found.high
    assert found.value == pytest.approx(1.1)
    double = median_ratio([2 * v for v in values])
    assert double.high == pytest.approx(2 * found.high)
    inverse = median_ratio([1 / v for v in values])
    assert inverse.value == pytest.approx(1 / found.value)


@pytest.mark.parametrize("pairs", [7, 21])
def test_the_interval_covers_the_truth(pairs):
    """Of many simulated timings, the bootstrap interval holds the true ratio about as often as it says."""
    generator = np.random.default_rng(3)
    held = 0
    for _ in range(200):
        values = 1.7 * np.exp(generator.normal(0, 0.05, pairs))
        found = median_ratio(list(values))
        held += found.low <= 1.7 <= found.high
    assert held / 200 >= 0.85  # seven pairs hold less than the nominal 95 %; `widen` makes up for it


def test_one_wild_pair_moves_little():
    values = [1.0] * 20 + [50.0]
    assert median_ratio(values).value == pytest.approx(1.0)


def test_widening_never_narrows_and_grows_with_each_source():
    inner = ratio(1.5, 1.48, 1.52)
    calm, noisy, biased = ratio(1.0, 0.999, 1.001), ratio(1.0, 0.95, 1.05), ratio(1.05, 1.049, 1.051)
    widths = [
        relative_half_width(widen(inner, calm, 0.0, 20)),
        relative_half_width(widen(inner, calm, 0.005, 20)),
        relative_half_width(widen(inner, noisy, 0.005, 20)),
    ]
    assert relative_half_width(inner) <= widths[0] + 1e-9
    assert widths == sorted(widths)
    assert relative_half_width(widen(inner, biased, 0.0, 20)) > relative_half_width(widen(inner, calm, 0.0, 20))
    for against in (calm, noisy, biased):
        wide = widen(inner, against, 0.005, 20)
        assert wide.value == pytest.approx(1.5)
        assert wide.low <= inner.low
        assert wide.high >= inner.high
        assert wide.low > 0
        assert math.isfinite(wide.high)
