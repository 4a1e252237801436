"""Input content that no call has seen, made quickly from a few real input sets.

Each tensor of a new content takes every few elements from one of the real sets, chosen by a secret pattern, each at its own
place: what is true element by element of the real inputs (a range, a mask, a structural zero) stays true, and no row is one that
was seen. Where more must be true (an order, a permutation, a sum) the problem's own code draws every content.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

SETS = 4
"""Real input sets that are mixed."""
RUN = 8
"""Neighbouring elements of a large tensor that come from one set: longer runs are copied faster, shorter ones mix better."""
_LARGE = 4096
_WINDOW = 1 << 16


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one content is made: for each tensor, where in the secret pattern it begins; or the seed it is drawn under."""

    offsets: tuple[int, ...]


class Contents(Protocol):
    """Where fresh contents come from: lists of flat tensors, in the layout's order."""

    seconds: float
    """What it takes to make one, where that is worth a thought."""

    def draw(self) -> Recipe:
        """A recipe that was not drawn before, where there is something to vary."""
        ...

    def fill(self, wanted: Iterable[tuple[Recipe, Sequence[torch.Tensor]]]) -> None:
        """Write contents into flat tensors."""
        ...

    def content(self, recipe: Recipe) -> list[torch.Tensor]:
        """A private copy of a content."""
        ...


class Drawn:
    """Contents that the problem's own code draws, each under a secret seed of its own: for inputs that cannot be mixed."""

    def __init__(
        self,
        take: Callable[[int], list[torch.Tensor]],
        running: Callable[[], AbstractContextManager[None]],
        seconds: float,
    ) -> None:
        """`take` asks the reference for the inputs of a seed, while `running` is entered."""
        self._take = take
        self._running = running
        self.seconds = seconds

    def draw(self) -> Recipe:
        return Recipe((secrets.randbits(62),))

    def fill(self, wanted: Iterable[tuple[Recipe, Sequence[torch.Tensor]]]) -> None:
        with self._running():
            for recipe, into in wanted:
                for target, tensor in zip(into, self._take(recipe.offsets[0]), strict=True):
                    target.copy_(tensor)

    def content(self, recipe: Recipe) -> list[torch.Tensor]:
        with self._running():
            return self._take(recipe.offsets[0])


class Mixer:
    """Makes contents from real sets: lists of flat tensors, of equal lengths and dtypes."""

    seconds = 0.0

    def __init__(self, sets: Sequence[Sequence[torch.Tensor]]) -> None:
        self._count = len(sets)
        self._tensors = [torch.stack(list(same)) for same in zip(*sets, strict=True)]
        generator = torch.Generator().manual_seed(secrets.randbits(62))
        longest = max((t.shape[1] // _run(t.shape[1]) for t in self._tensors), default=0)
        device = self._tensors[0].device if self._tensors else torch.device("cpu")
        self._pattern = torch.randint(0, self._count, (longest + _WINDOW,), generator=generator).to(device)
        self._halves = self._pattern.to(torch.uint8) < (self._count + 1) // 2 if device.type == "cuda" else None
        self._used: set[Recipe] = set()

    def draw(self) -> Recipe:
        """A recipe that was not drawn before, where there is something to mix."""
        while True:
            recipe = Recipe(tuple(secrets.randbelow(_WINDOW) for _ in self._tensors))
            if recipe not in self._used or not self._tensors:
                self._used.add(recipe)
                return recipe

    def make(self, recipe: Recipe, into: Sequence[torch.Tensor]) -> None:
        """Write a content into flat tensors."""
        for stacked, target, offset in zip(self._tensors, into, recipe.offsets, strict=True):
            self._mix(stacked, target, offset)

    def fill(self, wanted: Iterable[tuple[Recipe, Sequence[torch.Tensor]]]) -> None:
        for recipe, into in wanted:
            self.make(recipe, into)

    def _mix(self, stacked: torch.Tensor, target: torch.Tensor, offset: int) -> None:
        numel = target.numel()
        run = _run(numel)
        runs = numel // run
        if runs and self._halves is not None:
            # A GPU gathers single rows slowly: two sets, drawn for each content, are woven instead.
            first = offset % self._count
            second = (first + 1 + offset // self._count % max(1, self._count - 1)) % self._count
            torch.where(
                self._halves[offset : offset + runs].unsqueeze(1),
                stacked[first, : runs * run].view(runs, run),
                stacked[second, : runs * run].view(runs, run),
                out=target[: runs * run].view(runs, run),
            )
        elif runs:
            rows = stacked[:, : runs * run].reshape(self._count * runs, run)
            chosen = self._pattern[offset : offset + runs] * runs + torch.arange(runs)
            torch.index_select(rows, 0, chosen, out=target[: runs * run].view(runs, run))
        if runs * run < numel:
            target[runs * run :] = stacked[int(self._pattern[offset]), runs * run :]

    def content(self, recipe: Recipe) -> list[torch.Tensor]:
        """A private copy of a content."""
        made = [torch.empty_like(stacked[0]) for stacked in self._tensors]
        self.make(recipe, made)
        return made


def _run(numel: int) -> int:
    return RUN if numel >= _LARGE else 1
