"""Other searches on the same landscapes: openevolve's database with the same simulated model, and kernel-tuner's strategies.

Both are driven through their own code as it is installed. openevolve's controller is played by the loop here: one iteration after
the other, on its islands in turn, each reply added and migrated as its controller does. kernel-tuner needs no model and knows the
whole space beforehand: it never asks for a configuration that does not exist.
"""

from __future__ import annotations

import importlib.util
import logging
import random
import warnings
from functools import cache
from typing import TYPE_CHECKING, Any

from searching.simulation import CALLS, Found

if TYPE_CHECKING:
    from searching.landscape import Configuration, Landscape
    from searching.proposer import Model

STRATEGIES = ("genetic_algorithm", "simulated_annealing", "greedy_ils", "pso", "dual_annealing", "random_sample")


def has_kernel_tuner() -> bool:
    """Whether kernel-tuner is installed."""
    return importlib.util.find_spec("kernel_tuner") is not None


def openevolve(landscape: Landscape, model: Model, seed: int, calls: int = CALLS) -> Found:
    """A run by openevolve's database with its own settings, one call at a time."""
    from openevolve.config import DatabaseConfig
    from openevolve.database import Program, ProgramDatabase

    logging.getLogger("openevolve").setLevel(logging.ERROR)
    database = ProgramDatabase(DatabaseConfig(random_seed=seed, log_prompts=False))
    configurations: dict[str, Configuration] = {}

    def add(name: str, configuration: Configuration, iteration: int, island: int | None, parent: Any) -> None:
        configurations[name] = configuration
        program = Program(
            id=name,
            code=_code(landscape, configuration),
            parent_id=parent.id if parent is not None else None,
            generation=parent.generation + 1 if parent is not None else 0,
            iteration_found=iteration,
            metrics={"combined_score": landscape.value(configuration)},
        )
        database.add(program, iteration=iteration, target_island=island)

    add("start", landscape.start, 0, None, None)
    values = [landscape.value(landscape.start)]
    for call in range(1, calls + 1):
        island = (call - 1) % database.config.num_islands
        parent, _ = database.sample_from_island(island)
        reply = model.reply(landscape, configurations[parent.id], random.Random(f"{seed}:{call}"))
        value = 0.0
        if reply.configuration is not None and not reply.broken:
            add(f"m{call}", reply.configuration, call, island, parent)
            value = landscape.value(reply.configuration)
            database.increment_island_generation(island)
            if database.should_migrate():
                database.migrate_programs()
        values.append(max(values[-1], value))
    return Found(values=values, calls=calls, evaluations=len(configurations), chosen=values[-1])


def _code(landscape: Landscape, configuration: Configuration) -> str:
    chosen = zip(landscape.parameters, landscape.ladders, configuration, strict=True)
    return "\n".join(f"{name} = {ladder[place]}" for name, ladder, place in chosen) + "\n"


def kernel_tuner(landscape: Landscape, strategy: str, seed: int, evaluations: int = CALLS) -> Found:
    """A run by one of kernel-tuner's strategies with its own settings. Where it takes a start, it gets ours."""
    import numpy
    from kernel_tuner import util
    from kernel_tuner.interface import Options, strategy_map

    random.seed(seed)
    numpy.random.seed(seed)
    runner = _Runner(landscape)
    options: dict[str, Any] = {"max_fevals": evaluations}
    if strategy in _TAKE_A_START:
        options["x0"] = list(landscape.start)
    tuning = Options(
        tune_params=_space(landscape).tune_params,
        restrictions=None,
        strategy_options=Options(options),
        objective=["time"],
        objective_higher_is_better=[False],
        metrics=None,
        cache={},
        budget=util.TuningBudget(None, evaluations),
        max_fevals=evaluations,
        seed=seed,
        verbose=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        strategy_map[strategy].tune(_space(landscape), runner, tuning)
    values = [landscape.value(landscape.start)]
    for value in runner.values:
        values.append(max(values[-1], value))
    values += [values[-1]] * (evaluations + 1 - len(values))
    return Found(
        values=values[: evaluations + 1], calls=len(runner.values), evaluations=len(runner.values), chosen=values[-1]
    )


_TAKE_A_START = frozenset({"simulated_annealing", "greedy_ils", "dual_annealing"})


@cache
def _space(landscape: Landscape) -> Any:
    from kernel_tuner.searchspace import Searchspace

    known = [*landscape.measured, *landscape.failed]
    places = {
        name: list(range(len(ladder))) for name, ladder in zip(landscape.parameters, landscape.ladders, strict=True)
    }
    configurations = {str(item): dict(zip(landscape.parameters, item, strict=True)) for item in known}
    return Searchspace(None, None, None, from_cache={"tune_params": places, "cache": configurations})


class _Runner:
    """A runner of kernel-tuner's that looks times up. What was asked for before costs nothing again, as with its own."""

    simulation_mode = True

    def __init__(self, landscape: Landscape) -> None:
        self._landscape = landscape
        self._seen: set[Configuration] = set()
        self.values: list[float] = []
        """Share of the optimum of each evaluation that counts; 0 where it failed."""

    def add_strategy_time(self, seconds: float) -> None:
        """Time is not counted here."""

    def run(self, configurations: Any, tuning: Any) -> list[dict[str, Any] | None]:
        """What kernel-tuner is told of each configuration; None once its budget is used up."""
        from kernel_tuner import util

        told: list[dict[str, Any] | None] = []
        for item in configurations:
            if tuning.budget.is_done():
                told.append(None)
                continue
            configuration = tuple(int(place) for place in item)
            if configuration not in self._seen:
                self._seen.add(configuration)
                tuning.budget.add_evaluations(1)
                self.values.append(self._landscape.value(configuration))
            measured = self._landscape.measured.get(configuration)
            result: dict[str, Any] = dict(zip(self._landscape.parameters, configuration, strict=True))
            result["time"] = measured.time_ms if measured is not None else util.CompilationFailedConfig()
            if measured is None:
                result["__error__"] = util.CompilationFailedConfig()
            told.append(result)
        return told
