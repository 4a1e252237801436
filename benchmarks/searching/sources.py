"""Configurations as sources of candidates: what the searcher reads, stores and tells apart.

Opaque to the tuner, so that the model alone changes them; or with parameters as constants whose values are named, so that the
tuner may.
"""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from searching.landscape import Configuration, Landscape

STRUCTURAL = frozenset(
    {
        *("read_only", "use_padding", "use_shmem"),
        *("tile_stride_x", "tile_stride_y", "SA", "SB"),
        *("between_method", "use_method", "structure"),
    }
)
"""Parameters that choose between ways of doing it; all others are sizes."""


class Tunable(enum.Enum):
    """What of a candidate the tuner may change."""

    NOTHING = "nothing"
    SIZES = "sizes"
    EVERYTHING = "everything"


_OPAQUE = re.compile(r'^CONFIGURATION = "([\d,]+)"$', re.MULTILINE)
_BROKEN = re.compile(r"^BROKEN = (\d+)$", re.MULTILINE)
_CONSTANT = re.compile(r'^[PS](\d+) = "?(\d+)\b', re.MULTILINE)


def render(
    landscape: Landscape, configuration: Configuration, *, tunable: Tunable = Tunable.NOTHING, broken: int = 0
) -> str:
    """The candidate that stands for a configuration.

    Args:
        tunable: what of it the tuner may change.
        broken: it does not run; how many attempts led to that.
    """
    if tunable is not Tunable.NOTHING:
        lines = [
            f'S{index} = "{place}"'
            if name in STRUCTURAL and tunable is Tunable.SIZES
            else f"P{index} = {place}  # tune: {', '.join(map(str, range(len(ladder))))}"
            for index, (name, place, ladder) in enumerate(
                zip(landscape.parameters, configuration, landscape.ladders, strict=True)
            )
        ]
    else:
        lines = [f'CONFIGURATION = "{",".join(map(str, configuration))}"']
    if broken:
        lines.append(f"BROKEN = {broken}")
    # All of them reach the kernel: the tuner leaves alone what nothing names.
    named = ", ".join(line.partition(" = ")[0] for line in lines)
    return "\n".join(lines) + f"\n\nclass ModelNew:\n    built_of = ({named},)\n"


def parse(source: str) -> tuple[Configuration, int]:
    """The configuration that a candidate stands for, and how often it was broken in a row (0: it runs).

    Raises:
        ValueError: it stands for none.
    """
    opaque, broken = _OPAQUE.search(source), _BROKEN.search(source)
    if opaque is not None:
        configuration = tuple(map(int, opaque[1].split(",")))
    else:
        places = {int(index): int(place) for index, place in _CONSTANT.findall(source)}
        if not places or sorted(places) != list(range(len(places))):
            raise ValueError("no configuration in this source")
        configuration = tuple(places[index] for index in range(len(places)))
    return configuration, int(broken[1]) if broken is not None else 0
