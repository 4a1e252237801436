"""Input content that no call has seen, made quickly from a few real input sets.

Each tensor of a new content takes every few elements from one of the real sets, chosen by a secret pattern, each at its own
place: what is true element by element of the real inputs (a range, a mask, a structural zero) stays true, and no row is one that
was seen. Where more must be true (an order, a permutation, a sum) the problem's own code draws every content.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import cached_property
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
_DEVICE_WINDOW = 1 << 22
"""Places in the secret pattern where a content may begin. A GPU's blocks hold a thousand of them."""
_FEW = 64
"""Mixed elements of which no two contents' patterns are the same by chance; of fewer, patterns are compared."""
_TRIES = 100
_WOVEN_BYTES = 256 << 20
"""Most memory for the patterns of contents that are woven at once."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one content is made: for each tensor, where in the secret pattern it begins; or the seed it is drawn under."""

    offsets: tuple[int, ...]


class Contents(Protocol):
    """Where fresh contents come from: lists of flat tensors, in the layout's order."""

    seconds: float
    """What it takes to make one, where that is worth a thought."""

    def draw(self, count: int) -> list[Recipe]:
        """Recipes that were not drawn before, where there is something to vary."""
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

    def draw(self, count: int) -> list[Recipe]:
        return [Recipe((secrets.randbits(62),)) for _ in range(count)]

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

    def __init__(self, sets: Sequence[Sequence[torch.Tensor]], *, woven: bool | None = None) -> None:
        """`woven`: make a content of two sets only, as is quick on a GPU; by where the sets lie, unless told."""
        self._count = len(sets)
        self._tensors = [torch.stack(list(same)) for same in zip(*sets, strict=True)]
        generator = torch.Generator().manual_seed(secrets.randbits(62))
        longest = max((t.shape[1] // _run(t.shape[1]) for t in self._tensors), default=0)
        device = self._tensors[0].device if self._tensors else torch.device("cpu")
        self._woven = device.type == "cuda" if woven is None else woven
        self._window = _DEVICE_WINDOW if self._woven else _WINDOW
        pattern = torch.randint(0, self._count, (longest + self._window,), generator=generator).to(device)
        self._pattern = pattern.to(torch.uint8) < (self._count + 1) // 2 if self._woven else pattern
        self._used: set[object] = set()

    def draw(self, count: int) -> list[Recipe]:
        """Recipes of contents that were not drawn before; woven ones of one call are of the same sets.

        Where so few elements are mixed that nothing new is found in `_TRIES` drawings, a content does repeat.
        """
        pairs = self._count * max(1, self._count - 1) if self._woven else 1
        kinds = [secrets.randbelow(pairs) for _ in self._tensors]
        recipes: list[Recipe] = []
        while len(recipes) < count:
            for _ in range(_TRIES):
                recipe = Recipe(tuple(kind + pairs * secrets.randbelow(self._window // pairs) for kind in kinds))
                made_of = self._made_of(recipe)
                if made_of not in self._used:
                    break
            self._used.add(made_of)
            recipes.append(recipe)
        return recipes

    @cached_property
    def _told(self) -> bytes:
        """The pattern on the host, where what a few elements are made of is looked at: patterns of so few repeat."""
        told: bytes = self._pattern[: self._window + _FEW].to(torch.uint8).cpu().numpy().tobytes()
        return told

    def _made_of(self, recipe: Recipe) -> tuple[object, ...]:
        """What tells a content from others: of a tensor of few elements the set that each comes from, otherwise the offset."""
        parts: list[object] = []
        for stacked, offset in zip(self._tensors, recipe.offsets, strict=True):
            runs = stacked.shape[1] // _run(stacked.shape[1])
            if runs > _FEW:
                parts.append(offset)
            else:
                pattern = self._told[offset : offset + runs]
                if self._woven:
                    first, second = self._sets_of(offset)
                    pattern = bytes(first if chosen else second for chosen in pattern)
                parts.append(pattern)
        return tuple(parts)

    def fill(self, wanted: Iterable[tuple[Recipe, Sequence[torch.Tensor]]]) -> None:
        listed = list(wanted)
        for index, stacked in enumerate(self._tensors):
            targets = [into[index] for _, into in listed]
            offsets = [recipe.offsets[index] for recipe, _ in listed]
            if self._woven:
                self._weave(stacked, targets, offsets)
            else:
                for target, offset in zip(targets, offsets, strict=True):
                    self._mix(stacked, target, offset)

    def _weave(self, stacked: torch.Tensor, targets: Sequence[torch.Tensor], offsets: Sequence[int]) -> None:
        """A GPU gathers single rows slowly, and takes its time to launch kernels: two sets are woven, for many targets at once.

        At once where they are of the same two sets and lie at equal distances in one memory, as slots of a ring do.
        """
        kinds, distance = {self._sets_of(offset) for offset in offsets}, _distance(targets)
        if len(kinds) > 1 or distance is None:
            for target, offset in zip(targets, offsets, strict=True):
                self._weave(stacked, [target], [offset])
            return
        first, second = kinds.pop()
        run = _run(stacked.shape[1])
        runs = stacked.shape[1] // run
        together = max(1, _WOVEN_BYTES // max(1, runs))
        for at in range(0, len(targets) if runs else 0, together):
            part = torch.tensor(offsets[at : at + together], device=stacked.device)
            torch.where(
                self._pattern.unfold(0, runs, 1)[part].unsqueeze(2),
                stacked[first, : runs * run].view(1, runs, run),
                stacked[second, : runs * run].view(1, runs, run),
                out=targets[at].as_strided((len(part), runs, run), (distance, run, 1)),
            )
        if runs * run < stacked.shape[1]:
            for target in targets:
                target[runs * run :] = stacked[first, runs * run :]

    def _sets_of(self, offset: int) -> tuple[int, int]:
        """Which two sets a woven content is made of."""
        first = offset % self._count
        return first, (first + 1 + offset // self._count % max(1, self._count - 1)) % self._count

    def _mix(self, stacked: torch.Tensor, target: torch.Tensor, offset: int) -> None:
        numel = target.numel()
        run = _run(numel)
        runs = numel // run
        if runs:
            rows = stacked[:, : runs * run].reshape(self._count * runs, run)
            chosen = self._pattern[offset : offset + runs] * runs + torch.arange(runs)
            torch.index_select(rows, 0, chosen, out=target[: runs * run].view(runs, run))
        if runs * run < numel:
            target[runs * run :] = stacked[int(self._pattern[offset]), runs * run :]

    def content(self, recipe: Recipe) -> list[torch.Tensor]:
        """A private copy of a content."""
        made = [torch.empty_like(stacked[0]) for stacked in self._tensors]
        self.fill([(recipe, made)])
        return made


def _run(numel: int) -> int:
    return RUN if numel >= _LARGE else 1


def _distance(targets: Sequence[torch.Tensor]) -> int | None:
    """Elements from one target to the next, where they lie in order, at equal distances in one memory; otherwise nothing."""
    begin, memory = targets[0].storage_offset(), targets[0].untyped_storage().data_ptr()
    distance = targets[1].storage_offset() - begin if len(targets) > 1 else targets[0].numel()
    regular = all(
        target.storage_offset() == begin + number * distance and target.untyped_storage().data_ptr() == memory
        for number, target in enumerate(targets)
    )
    return distance if regular and (distance > 0 or len(targets) == 1) else None
