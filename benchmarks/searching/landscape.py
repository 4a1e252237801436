"""Spaces of configurations whose times are known, so that a search over them costs nothing.

A configuration is a tuple of places on its parameters' ladders. Recorded spaces come from the files beside this one; what a
place means on a GPU matters to nobody here.
"""

from __future__ import annotations

import csv
import gzip
import math
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

FOLDER = Path(__file__).parent / "landscapes"
RECORDED = {
    "convolution-A100": "convolution",
    "convolution-MI250X": "convolution",
    "convolution-RTX3090": "convolution",
    "dedispersion-A100": "dedispersion",
    "gemm-RTX3090": "gemm",
    "pnpoly-RTX3090": "pnpoly",
}
"""Names of the recorded landscapes, and the kernel of each."""
_DECILES = 2.563
"""Between the 10th and the 90th percentile of a normal distribution, in deviations."""
_START = 0.75
NEAR = 0.9
"""Share of the optimum that counts as found."""

Configuration = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """What is known of a configuration that runs."""

    time_ms: float
    sigma: float = 0.0
    """Deviation of the logarithm of one timing."""


@dataclass(frozen=True, eq=False)
class Landscape:
    """A space and the time of each of its configurations."""

    name: str
    kernel: str
    """Landscapes of one kernel are alike: what is held out is held out by kernel."""
    parameters: tuple[str, ...]
    ladders: tuple[tuple[str, ...], ...]
    """Values of each parameter, ascending."""
    measured: dict[Configuration, Measured]
    failed: frozenset[Configuration] = frozenset()
    """Configurations that exist and do not run."""

    @cached_property
    def ordered(self) -> list[Configuration]:
        """Those that run, fastest first."""
        return sorted(self.measured, key=lambda configuration: (self.measured[configuration].time_ms, configuration))

    @property
    def best_ms(self) -> float:
        return self.measured[self.ordered[0]].time_ms

    @property
    def start(self) -> Configuration:
        """Where every search begins: the configuration at the 75th percentile of time."""
        return self.ordered[int(_START * (len(self.ordered) - 1))]

    def value(self, configuration: Configuration) -> float:
        """Share of the optimum: best time of the space over the time of this one; 0 where it does not run."""
        measured = self.measured.get(configuration)
        return self.best_ms / measured.time_ms if measured is not None else 0.0


@cache
def recorded(name: str) -> Landscape:
    """A recorded landscape.

    Raises:
        FileNotFoundError: there is none of this name.
    """
    with gzip.open(FOLDER / f"{name}.csv.gz", "rt", encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    count = len(header) - 3
    ladders = tuple(tuple(sorted({row[index] for row in rows}, key=float)) for index in range(count))
    places = [{value: place for place, value in enumerate(ladder)} for ladder in ladders]
    measured, failed = {}, set()
    for row in rows:
        configuration = tuple(places[index][row[index]] for index in range(count))
        if row[count]:
            median, low, high = map(float, row[count:])
            measured[configuration] = Measured(median, math.log(high / low) / _DECILES)
        else:
            failed.add(configuration)
    return Landscape(name, RECORDED[name], tuple(header[:count]), ladders, measured, frozenset(failed))
