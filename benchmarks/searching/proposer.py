"""The simulated model: ideas about a parent configuration, better than chance by a known amount.

Given a parent it draws three ideas. Each changes 1, 1, 1, 2, 2 or 3 varying parameters: six times in ten by one or two steps
on the ladder, else to any value; 8 % of ideas are a configuration of the whole space. Of those that exist one is picked with
weight `exp(skill * (log(best / time) + noise))`, the noise normal with deviation 1. A quarter of the replies is invalid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

    from searching.landscape import Configuration, Landscape

_IDEAS = 3
_CHANGES = (1, 1, 1, 2, 2, 3)
_NEAR_SHARE = 0.6
_ANYWHERE_SHARE = 0.08
_MOST_DRAWS = 100
"""Rounds of ideas until one exists; sparse spaces need a few."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model says."""

    configuration: Configuration | None
    """Absent in a reply that is of no use."""
    broken: bool = False
    """The kernel does not run: a repair may make it."""


@dataclass(frozen=True, slots=True)
class Model:
    """A simulated model.

    Args:
        skill: how well it tells good ideas from bad ones; 0 is blind.
        invalid: share of its replies that are of no use.
        broken: of these, the share that holds a kernel all the same, which fails when it is evaluated.
        repairs: share of its repairs that succeed.
    """

    skill: float = 0.5
    invalid: float = 0.25
    broken: float = 0.0
    repairs: float = 0.5

    def reply(self, landscape: Landscape, parent: Configuration, rng: random.Random) -> Reply:
        """What it makes of a parent. As many draws come before the idea whatever becomes of the reply."""
        useless, held = rng.random() < self.invalid, rng.random() < self.broken
        if useless and not held:
            return Reply(None)
        for _ in range(_MOST_DRAWS):
            ideas = [idea for _ in range(_IDEAS) if (idea := _idea(landscape, parent, rng)) in landscape.measured]
            if ideas:
                return Reply(self._picked(landscape, ideas, rng), broken=useless)
        return Reply(None)

    def repair(self, configuration: Configuration, rng: random.Random) -> Reply:
        """What it makes of a kernel that failed."""
        return Reply(configuration, broken=rng.random() >= self.repairs)

    def join(self, landscape: Landscape, one: Configuration, other: Configuration, rng: random.Random) -> Reply:
        """What it makes of two kernels: ideas that have each parameter of the one or of the other."""
        useless, held = rng.random() < self.invalid, rng.random() < self.broken
        if useless and not held:
            return Reply(None)
        for _ in range(_MOST_DRAWS):
            mixed = [tuple(map(rng.choice, zip(one, other, strict=True))) for _ in range(_IDEAS)]
            ideas = [idea for idea in mixed if idea in landscape.measured and idea not in (one, other)]
            if ideas:
                return Reply(self._picked(landscape, ideas, rng), broken=useless)
        return Reply(None)

    def _picked(self, landscape: Landscape, ideas: list[Configuration], rng: random.Random) -> Configuration:
        weights = [math.exp(self.skill * (math.log(landscape.value(idea)) + rng.gauss(0.0, 1.0))) for idea in ideas]
        return rng.choices(ideas, weights)[0]


def _idea(landscape: Landscape, parent: Configuration, rng: random.Random) -> Configuration:
    if rng.random() < _ANYWHERE_SHARE:
        return landscape.ordered[rng.randrange(len(landscape.ordered))]
    ladders = landscape.ladders
    varying = [index for index, ladder in enumerate(ladders) if len(ladder) > 1]
    idea = list(parent)
    for index in rng.sample(varying, min(len(varying), rng.choice(_CHANGES))):
        idea[index] = _changed(parent[index], len(ladders[index]), rng)
    return tuple(idea)


def _changed(place: int, length: int, rng: random.Random) -> int:
    """Another place on a ladder of this length."""
    if rng.random() < _NEAR_SHARE:
        near = [place + step for step in (-2, -1, 1, 2) if 0 <= place + step < length]
        return rng.choice(near)
    other = rng.randrange(length - 1)
    return other + (other >= place)
