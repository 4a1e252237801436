"""Input content that no call has seen, made quickly from a few real input sets.

Each tensor of a new content takes every element from one of two real sets, chosen by a secret pattern of bits, so that what is
true element by element of the real inputs (a range, a mask, a structural zero) stays true, and no row is one that was seen.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

SETS = 4
"""Real input sets that are mixed."""
_WINDOW = 1 << 16
_PATTERNS = 3


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one content is made: for all tensors, two sets; for each, a pattern and an offset into it."""

    first: int
    second: int
    patterns: tuple[tuple[int, int], ...]


class Mixer:
    """Makes contents from real sets: lists of flat tensors, of equal lengths and dtypes."""

    def __init__(self, sets: Sequence[Sequence[torch.Tensor]], *, elementwise: bool) -> None:
        """`elementwise=False`: whole tensors are taken from a set, for problems whose inputs cannot be mixed."""
        self._sets = [list(tensors) for tensors in sets]
        self._elementwise = elementwise
        self._generator = torch.Generator().manual_seed(secrets.randbits(62))
        longest = max((t.numel() for t in self._sets[0]), default=0)
        self._patterns = [
            torch.randint(0, 2, (longest + _WINDOW,), dtype=torch.uint8, generator=self._generator).to(torch.bool)
            for _ in range(_PATTERNS if elementwise else 0)
        ]
        self._used: set[Recipe] = set()

    def draw(self) -> Recipe:
        """A recipe that was not drawn before, where there is something to mix."""
        count = len(self._sets)
        while True:
            first = secrets.randbelow(count)
            second = (first + 1 + secrets.randbelow(count - 1)) % count
            patterns = tuple((secrets.randbelow(_PATTERNS), secrets.randbelow(_WINDOW)) for _ in self._sets[0])
            recipe = Recipe(first, second, patterns)
            if recipe not in self._used or not patterns:
                self._used.add(recipe)
                return recipe

    def make(self, recipe: Recipe, into: Sequence[torch.Tensor]) -> None:
        """Write a content into flat tensors."""
        first, second = self._sets[recipe.first], self._sets[recipe.second]
        for a, b, target, (pattern, offset) in zip(first, second, into, recipe.patterns, strict=True):
            if self._elementwise:
                torch.where(self._patterns[pattern][offset : offset + a.numel()], a, b, out=target)
            else:
                target.copy_(a if offset % 2 else b)

    def content(self, recipe: Recipe) -> list[torch.Tensor]:
        """A private copy of a content."""
        made = [torch.empty_like(tensor) for tensor in self._sets[0]]
        self.make(recipe, made)
        return made
