"""Calls alone in their block: when they count, when they dispute, and what a timing's time is spent on."""

from __future__ import annotations

import random
import time

import pytest

from kernelevo_api.types import Ratio
from kernelevo_evaluator.referee.spent import DEFENCES, Spent
from kernelevo_evaluator.referee.statistics import quartile_gap
from kernelevo_evaluator.referee.timing import Lone

SPEEDUP = Ratio(value=2.0, low=1.8, high=2.2, confidence=0.95)


@pytest.mark.parametrize(
    ("alone", "error", "counts", "disputes"),
    [
        (100.0, 5.0, False, False),
        (60.0, 5.0, False, False),
        (112.0, 5.0, False, False),
        (130.0, 5.0, True, False),
        (130.0, 40.0, False, False),
        (400.0, 20.0, True, True),
        (400.0, 60.0, True, False),
        (100.0, 0.0, False, False),
    ],
)
def test_the_slower_figure_counts_when_it_is_surely_slower(alone, error, counts, disputes):
    lone = Lone(100.0, alone, error, 9)
    assert lone.counts is counts
    assert lone.disputes is disputes


def test_few_pairs_dispute_nothing():
    assert not Lone(100.0, 4000.0, 1.0, 5).disputes
    assert Lone(100.0, 4000.0, 1.0, 5).counts


def test_a_speedup_by_lone_calls():
    slower = Lone(100.0, 200.0, 10.0, 9).slower(SPEEDUP)
    assert slower.value == pytest.approx(1.0)
    assert slower.low < slower.value < slower.high < SPEEDUP.value


def test_a_gap_of_quartiles_withstands_what_makes_calls_longer():
    generator = random.Random(3)

    def calls(microseconds):
        disturbed = lambda: generator.choice([0, 0, 0, 4000, 15000])  # noqa: E731
        return [microseconds + generator.gauss(0, 10) + disturbed() for _ in range(200)]

    gap, error = quartile_gap(calls(400), calls(300))
    assert abs(gap - 100) < 4 * error
    assert error < 10


def test_time_within_another_purpose_counts_once():
    spent = Spent()
    with spent.on("timed blocks"):
        time.sleep(0.02)
        with spent.on("lone calls"):
            time.sleep(0.02)
            with spent.on("fresh inputs"):
                time.sleep(0.02)
        time.sleep(0.02)
    assert set(spent.seconds) == {"timed blocks", "lone calls", "fresh inputs"}
    assert spent.seconds["timed blocks"] >= 0.04
    assert spent.seconds["lone calls"] >= 0.02
    assert all(f"{name} " in spent.describe() for name in spent.seconds)
    assert set(DEFENCES) & set(spent.seconds) == {"lone calls", "fresh inputs"}
