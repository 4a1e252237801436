"""What is compared with what, on which landscapes: every arm of the benchmark, by name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from kernelevo_searcher.mechanisms import Mechanism, PolicyName
from searching import others, trials
from searching.deceptive import CO_TUNED, deceptive
from searching.landscape import RECORDED, Landscape, recorded
from searching.proposer import Model
from searching.simulation import Found, Setup, Simulation
from searching.sources import Tunable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Arm = Callable[[Landscape, int, int], Found]

OURS, GREEDY, INDEPENDENT, OPENEVOLVE = "ours", "greedy", "independent", "openevolve"
DECEPTIVE = tuple(f"deceptive-{count}" for count in CO_TUNED)


@dataclass(frozen=True, slots=True)
class Experiment:
    """Arms that are compared under one condition: each carries out a run, given a landscape, a seed and a number of calls."""

    name: str
    arms: Mapping[str, Arm]
    landscapes: tuple[str, ...] = tuple(RECORDED)


def landscape(name: str) -> Landscape:
    """A landscape by its name, recorded or made."""
    if name in DECEPTIVE:
        return deceptive(int(name.rpartition("-")[2]))
    return recorded(name)


def _simulate(setup: Setup, space: Landscape, seed: int, calls: int) -> Found:
    return Simulation(space, replace(setup, calls=calls), seed).run()


def _openevolve(model: Model, space: Landscape, seed: int, calls: int) -> Found:
    return others.openevolve(space, model, seed, calls)


def _kernel_tuner(strategy: str, space: Landscape, seed: int, calls: int) -> Found:
    return others.kernel_tuner(space, strategy, seed, calls)


def _policies(setup: Setup) -> dict[str, Arm]:
    return {
        name.value if name is not PolicyName.EVOLVE else OURS: partial(_simulate, replace(setup, policy=name))
        for name in PolicyName
    }


def _without(setup: Setup, *left_out: Mechanism) -> dict[str, Arm]:
    return {
        f"without {mechanism.value}": partial(_simulate, replace(setup, without=(*setup.without, mechanism)))
        for mechanism in left_out
    }


def experiments() -> tuple[Experiment, ...]:
    """All of them. kernel-tuner's are left out where it is not installed."""
    plain = Setup()
    failing = replace(plain, model=Model(broken=1.0))
    crowd = replace(plain, in_flight=8)
    tuning = replace(plain, tunable=Tunable.SIZES, in_flight=4, until_near=True)
    pair = replace(plain, model=Model(skill=0.0), other_model=Model(skill=1.5))
    rule = (Mechanism.RANKS, Mechanism.CHILDREN, Mechanism.RESTART)
    strategies = others.STRATEGIES if others.has_kernel_tuner() else ()
    return (
        Experiment(
            "model alone", {**_policies(plain), **_without(plain, *rule), OPENEVOLVE: partial(_openevolve, Model())}
        ),
        Experiment(
            "model and tuner",
            {**_pair(tuning), **_without(tuning, Mechanism.TUNE, Mechanism.FAMILIES)},
            (*RECORDED, DECEPTIVE[0]),
        ),
        # Runs that never arrive here take minutes each, so that only ours is tried.
        Experiment("model and tuner, three to suit", {OURS: partial(_simulate, tuning)}, (DECEPTIVE[1],)),
        Experiment(
            "deceptive",
            {**_policies(plain), **_without(plain, *rule), OPENEVOLVE: partial(_openevolve, Model())},
            DECEPTIVE,
        ),
        Experiment(
            "tried beside",
            {
                OURS: partial(_simulate, plain),
                "with merging": partial(_simulate, replace(plain, merge_share=0.15)),
                "with niches": partial(_simulate, replace(plain, trial=trials.niches)),
                "with a bandit of actions": partial(_simulate, replace(plain, trial=trials.bandit_of_actions)),
                "of two models": partial(_simulate, pair),
                "of two models, with a bandit": partial(_simulate, replace(pair, trial=trials.bandit_of_models)),
            },
            (*RECORDED, *DECEPTIVE),
        ),
        Experiment("eight in flight", {**_policies(crowd), **_without(crowd, Mechanism.IN_FLIGHT)}),
        Experiment("recorded noise", _pair(replace(plain, noisy=True))),
        Experiment("blind model", _pair(replace(plain, model=Model(skill=0.0)))),
        Experiment("skilled model", _pair(replace(plain, model=Model(skill=1.5)))),
        Experiment("kernels that fail", {**_pair(failing), **_without(failing, Mechanism.FIX)}),
        Experiment("stopping by itself", {OURS: partial(_simulate, replace(plain, without=()))}),
        Experiment(
            "no model",
            {
                "our tuner": partial(_simulate, replace(plain, model=None, tunable=Tunable.EVERYTHING)),
                **{f"kernel-tuner {strategy}": partial(_kernel_tuner, strategy) for strategy in strategies},
            },
        ),
    )


def _pair(setup: Setup) -> dict[str, Arm]:
    policies = _policies(setup)
    return {OURS: policies[OURS], GREEDY: policies[GREEDY]}
