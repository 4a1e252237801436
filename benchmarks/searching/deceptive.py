"""Made landscapes on which the way to the best leads through worse: a structure that costs more than it gains until two or three
parameters are set to suit it.

A choice between three structures and five parameters of five places. Each parameter has a place that is best by itself, and the
time grows with the distance to it. The second structure takes half the time once its own parameters stand where it needs
them, which is not where they are best without it; a quarter more than the first until then, a little less so with each that is
right. The third structure never pays.
"""

from __future__ import annotations

import itertools
import math
from functools import cache

from searching.landscape import Configuration, Landscape, Measured

_PLACES = 5
_BEST = (1, 3, 2, 3, 1)
"""Best place of each parameter by itself."""
_SLOPES = (0.10, 0.12, 0.06, 0.09, 0.05)
"""Growth of the logarithm of the time, for each place off."""
_SUITED = (3, 1, 4)
"""Where the second structure needs the first parameters."""
_PAID = 0.5
_UNPAID = 1.25
_NEARER = 0.05
"""Less of the excess for each parameter that suits already."""
_NEVER = 1.3
_SIGMA = 0.004
CO_TUNED = (2, 3)


@cache
def deceptive(co_tuned: int) -> Landscape:
    """The landscape whose best structure needs this many parameters to suit it."""
    measured = {
        (structure, *places): Measured(_time_ms(structure, places, co_tuned), _SIGMA)
        for structure in range(3)
        for places in itertools.product(range(_PLACES), repeat=len(_BEST))
    }
    ladder = tuple(map(str, range(_PLACES)))
    return Landscape(
        name=f"deceptive-{co_tuned}",
        kernel=f"deceptive-{co_tuned}",
        parameters=("structure", *(f"p{index}" for index in range(len(_BEST)))),
        ladders=(("0", "1", "2"), *(ladder for _ in _BEST)),
        measured=measured,
    )


def _time_ms(structure: int, places: Configuration, co_tuned: int) -> float:
    wanted = list(_BEST)
    factor = 1.0
    if structure == 1:
        wanted[:co_tuned] = _SUITED[:co_tuned]
        suits = sum(places[index] == wanted[index] for index in range(co_tuned))
        factor = _PAID if suits == co_tuned else _UNPAID - _NEARER * suits
    elif structure == 2:
        factor = _NEVER
    # What does not suit yet is no worse for being far off: there is no slope to follow into the second structure.
    first = co_tuned if structure == 1 else 0
    off = sum(
        slope * abs(place - best)
        for slope, place, best in zip(_SLOPES[first:], places[first:], wanted[first:], strict=True)
    )
    return factor * math.exp(off)
