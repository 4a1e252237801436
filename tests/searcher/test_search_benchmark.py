"""The benchmark of the search: its landscapes and its model are what they are said to be, and it drives the real policy."""

from __future__ import annotations

import math
import random
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import search
from searching import others
from searching.deceptive import deceptive
from searching.experiments import Experiment, experiments
from searching.landscape import RECORDED, recorded
from searching.proposer import Model, Reply
from searching.simulation import Setup, Simulation
from searching.sources import Tunable, parse, render
from searching.statistics import calls_to_near, chance_of_being_worse, holm, progress, summarise

from kernelevo_searcher.events import EvaluationStarted, ModelCallFinished, ModelCallStarted
from kernelevo_searcher.mechanisms import Mechanism, PolicyName
from kernelevo_searcher.proposers import ActionKind
from kernelevo_searcher.state import replay
from kernelevo_searcher.tuner.scan import find_parameters

if TYPE_CHECKING:
    from searching.landscape import Configuration

PNPOLY = "pnpoly-RTX3090"


@pytest.mark.parametrize(
    ("name", "configurations", "failed", "parameters", "best_ms"),
    [("convolution-A100", 4362, 161, 7, 0.5499), (PNPOLY, 4092, 318, 4, 8.733)],
)
def test_landscapes_are_read_as_they_were_recorded(
    name: str, configurations: int, failed: int, parameters: int, best_ms: float
) -> None:
    space = recorded(name)
    assert (len(space.measured) + len(space.failed), len(space.failed)) == (configurations, failed)
    assert len(space.parameters) == parameters
    assert space.best_ms == pytest.approx(best_ms, rel=1e-3)
    assert space.value(space.ordered[0]) == 1.0
    slower = sum(measured.time_ms > space.measured[space.start].time_ms for measured in space.measured.values())
    assert slower / len(space.measured) == pytest.approx(0.25, abs=0.01)
    assert all(space.value(configuration) == 0.0 for configuration in space.failed)


def test_the_simulated_model_keeps_to_its_definition() -> None:
    space, rng = recorded(PNPOLY), random.Random(1)

    def replies(model: Model, count: int) -> list[Reply]:
        return [model.reply(space, space.start, rng) for _ in range(count)]

    def mean(model: Model) -> float:
        made = [reply.configuration for reply in replies(model, 2000)]
        return statistics.fmean(space.value(item) for item in made if item is not None)

    useless = sum(reply.configuration is None for reply in replies(Model(), 1000))
    assert useless / 1000 == pytest.approx(0.25, abs=0.06)
    assert mean(Model(skill=3.0, invalid=0.0)) > mean(Model(skill=0.0, invalid=0.0)) + 0.01
    changed = [
        sum(a != b for a, b in zip(reply.configuration, space.start, strict=True))
        for reply in replies(Model(invalid=0.0), 300)
        if reply.configuration is not None
    ]
    assert min(changed) == 1 and changed.count(1) > len(changed) / 3 and changed.count(4) < len(changed) / 10


def test_configurations_and_sources_tell_the_same() -> None:
    space = recorded(PNPOLY)
    for configuration in random.Random(2).sample(space.ordered, 20):
        assert parse(render(space, configuration)) == (configuration, 0)
        assert parse(render(space, configuration, tunable=Tunable.SIZES, broken=2)) == (configuration, 2)
    assert find_parameters(render(space, space.start)) is None
    tunable = find_parameters(render(space, space.start, tunable=Tunable.SIZES))
    assert tunable is not None
    # Which of its methods is used is no matter of size.
    assert [len(parameter.values) for parameter in tunable.parameters] == [len(space.ladders[1]), len(space.ladders[2])]


def test_a_run_is_the_real_searcher_and_repeatable() -> None:
    space = recorded(PNPOLY)
    simulation = Simulation(space, Setup(calls=40), seed=3)
    found = simulation.run()
    events = [record.event for record in simulation.records()]
    assert sum(isinstance(event, ModelCallFinished) for event in events) == found.calls == 40
    assert replay(simulation.records()) == simulation.state
    assert found.values == sorted(found.values) and len(found.values) == 41
    assert found.chosen == found.values[-1]
    assert found == Simulation(space, Setup(calls=40), seed=3).run()
    assert found != Simulation(space, Setup(calls=40), seed=4).run()


def test_policies_rank_as_they_should() -> None:
    space = recorded("dedispersion-A100"), recorded(PNPOLY)

    def mean(policy: PolicyName) -> float:
        setup = Setup(policy=policy, calls=60)
        return statistics.fmean(Simulation(each, setup, seed).run().values[-1] for each in space for seed in range(3))

    assert mean(PolicyName.EVOLVE) > mean(PolicyName.INDEPENDENT) + 0.05
    assert mean(PolicyName.GREEDY) > mean(PolicyName.INDEPENDENT) + 0.05


def test_calls_overlap_with_each_other_and_with_evaluations() -> None:
    simulation = Simulation(recorded(PNPOLY), Setup(calls=40, in_flight=8), seed=1)
    found = simulation.run()
    calls = most = overlapping = 0
    for record in simulation.records():
        calls += isinstance(record.event, ModelCallStarted)
        calls -= isinstance(record.event, ModelCallFinished)
        most = max(most, calls)
        overlapping += isinstance(record.event, EvaluationStarted) and calls > 0
    assert most == 8 and overlapping > 10
    assert found.calls == 40


def test_noise_hides_the_best_and_kernels_that_fail_are_repaired() -> None:
    noisy = Simulation(recorded(PNPOLY), Setup(calls=40, noisy=True), seed=1)
    noisy.run()
    widths = [
        candidate.speedup.high - candidate.speedup.low
        for candidate in noisy.state.candidates.values()
        if candidate.speedup
    ]
    assert min(widths) >= 0 and max(widths) > 1e-4
    failing = Simulation(recorded(PNPOLY), Setup(calls=40, model=Model(broken=1.0)), seed=1)
    failing.run()
    actions = failing.state.actions
    assert actions[ActionKind.FIX] > 3
    without = Setup(calls=40, model=Model(broken=1.0), without=(Mechanism.PATIENCE, Mechanism.FIX))
    left_out = Simulation(recorded(PNPOLY), without, seed=1)
    left_out.run()
    assert left_out.state.actions[ActionKind.FIX] == 0


def test_model_and_tuner_together_stop_near_the_optimum() -> None:
    setup = Setup(calls=60, in_flight=4, tunable=Tunable.SIZES, until_near=True)
    simulation = Simulation(recorded(PNPOLY), setup, seed=0)
    found = simulation.run()
    assert found.values[-1] >= 0.9 and found.calls < 60 and "target" in found.reason
    assert simulation.state.actions[ActionKind.TUNE] > found.calls


def test_the_tuner_alone_finds_most_of_it() -> None:
    found = Simulation(
        recorded("convolution-RTX3090"), Setup(calls=60, model=None, tunable=Tunable.EVERYTHING), seed=1
    ).run()
    assert found.values[-1] > 0.5 and len(found.values) == found.evaluations == 61


@pytest.mark.parametrize("co_tuned", [2, 3])
def test_the_way_to_the_best_of_a_deceptive_landscape_leads_through_worse(co_tuned: int) -> None:
    space = deceptive(co_tuned)
    assert all(configuration[0] == 1 for configuration in space.ordered if space.value(configuration) > 0.9)
    plain = max((item for item in space.ordered if item[0] == 0), key=space.value)

    def apart(item: Configuration) -> int:
        return sum(a != b for a, b in zip(item, plain, strict=True))

    near = [item for item in space.ordered if item[0] == 1 and apart(item) <= co_tuned]
    assert near and all(space.value(item) < space.value(plain) for item in near)


def test_openevolves_database_is_driven_with_the_same_luck() -> None:
    pytest.importorskip("openevolve")
    space = recorded(PNPOLY)
    found = others.openevolve(space, Model(), seed=1, calls=15)
    assert len(found.values) == 16 and found.values[-1] > found.values[0]
    # The first call has the start for its parent, whoever asks.
    ours = Simulation(space, Setup(calls=15), seed=1).run()
    assert found.values[1] == ours.values[1]


def test_shares_medians_and_comparisons() -> None:
    assert calls_to_near([0.5, 0.7, 0.91, 0.95]) == 2
    assert math.isinf(calls_to_near([0.5]))
    assert progress([0.45, 0.9, 1.0]) == pytest.approx(2.5 / 3)
    summary = summarise([[0.5, 0.95]] * 8 + [[0.5, 0.6]] * 2)
    assert (summary.reached, summary.median_calls) == (0.8, 1)
    assert summary.low < 0.55 and summary.high > 0.9
    rng = random.Random(5)
    theirs = [rng.random() for _ in range(30)]
    assert chance_of_being_worse([value - 0.5 * rng.random() for value in theirs], theirs) < 0.001
    assert chance_of_being_worse([value + rng.gauss(0, 0.1) for value in theirs], theirs) > 0.05
    assert chance_of_being_worse(theirs, theirs) == 1.0
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06})


def test_figures_come_of_every_experiment(tmp_path: Path) -> None:
    names = [experiment.name for experiment in experiments()]
    assert len(set(names)) == len(names)
    assert all(name in RECORDED or name.startswith("deceptive") for each in experiments() for name in each.landscapes)
    (whole,) = (experiment for experiment in experiments() if experiment.name == "model alone")
    small = Experiment(whole.name, {arm: whole.arms[arm] for arm in ("ours", "greedy")}, (PNPOLY, "dedispersion-A100"))
    keep = tmp_path / "runs.jsonl"
    runs = search.carry_out([small], range(2), 12, jobs=1, keep=keep)
    assert len(runs) == 8 and len(keep.read_text().splitlines()) == 8
    assert search.carry_out([small], range(2), 12, jobs=1, keep=keep) == runs
    figures = search.figures([small], runs)
    assert {"value", "unit", "figure"} <= set(figures[0])
    assert any(figure.get("bound") == "== 0" for figure in figures)
    assert "ours" in search.table(small, runs)
