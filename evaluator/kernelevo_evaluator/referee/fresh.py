"""Input content that no call has seen, made quickly from a few real input sets.

Each tensor of a new content takes every few elements from one of the real sets, chosen by a secret pattern, each at its own
place: what is true element by element of the real inputs (a range, a mask, a structural zero) stays true, and no row is one that
was seen. Where more must be true (an order, a permutation, a sum) the problem's own code draws every content.
"""

from __future__ import annotations

import secrets
import time
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    import numpy.typing as npt

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
_TILE_BYTES = 4 << 20
"""Of either set, what is woven at once: a GPU's cache holds it while it goes into every target. Less and more are slower."""
_WORDS = (torch.complex128, torch.int64)
"""Types to move memory by, the widest first: a GPU weaves 16 bytes at once twice as fast as 4."""


class Recipe(NamedTuple):
    """How one content is made: for each tensor, where in the secret pattern it begins; or the seed it is drawn under."""

    offsets: tuple[int, ...]
    given: list[torch.Tensor] | None = None
    """The content itself, where nothing makes it again."""


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


class Unseen:
    """Real input sets of which no call has seen any part: what a call takes that can have kept nothing.

    A mixture is new, and yet made of parts that others held: who keeps the answer to each run of elements that it meets computes
    nothing after a few calls, where outputs depend on few neighbours alone.
    """

    def __init__(
        self, take: Callable[[], list[torch.Tensor]], running: Callable[[], AbstractContextManager[None]], most: int
    ) -> None:
        """`take` asks the reference for new inputs, while `running` is entered; no more than `most` sets at once."""
        self._take = take
        self._running = running
        self._most = most

    def draw(self, seconds: float) -> list[list[torch.Tensor]]:
        """Private copies of as many sets as are drawn in this time; one at least."""
        sets: list[list[torch.Tensor]] = []
        until = time.monotonic() + seconds
        with self._running():
            while not sets or (len(sets) < self._most and time.monotonic() < until):
                sets.append(self._take())
        return sets


class Mixer:
    """Makes contents from real sets: lists of flat tensors, of equal lengths and dtypes."""

    seconds = 0.0

    def __init__(self, sets: Sequence[Sequence[torch.Tensor]], *, woven: bool | None = None) -> None:
        """`woven`: make a content of two sets only, as is quick on a GPU; by where the sets lie, unless told."""
        self._count = len(sets)
        self._tensors = [torch.stack(list(same)) for same in zip(*sets, strict=True)]
        generator = torch.Generator().manual_seed(secrets.randbits(62))
        self._runs = [stacked.shape[1] // _run(stacked.shape[1]) for stacked in self._tensors]
        self._any_few = any(runs <= _FEW for runs in self._runs)
        longest = max(self._runs, default=0)
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
        kinds = np.array([secrets.randbelow(self._kinds) for _ in self._tensors], dtype=np.int64)
        recipes: list[Recipe] = []
        for row in self._drawn(kinds, count):
            recipe = Recipe(tuple(row))
            made_of = self._made_of(recipe)
            for _ in range(_TRIES):
                if made_of not in self._used:
                    break
                recipe = Recipe(tuple(*self._drawn(kinds, 1)))
                made_of = self._made_of(recipe)
            self._used.add(made_of)
            recipes.append(recipe)
        return recipes

    @property
    def worn(self) -> bool:
        """Whether so much was drawn that another pattern is due."""
        return len(self._used) > self._window // 8

    @property
    def _kinds(self) -> int:
        """Pairs of sets that a woven content may be made of; an offset's remainder says which."""
        return self._count * max(1, self._count - 1) if self._woven else 1

    def _drawn(self, kinds: npt.NDArray[np.int64], count: int) -> list[list[int]]:
        """Secret offsets for as many contents, by tensor. All at once: a block of a GPU has hundreds."""
        drawn = np.frombuffer(secrets.token_bytes(8 * count * len(kinds)), dtype=np.uint64)
        places = (drawn % (self._window // self._kinds)).astype(np.int64).reshape(count, len(kinds))
        rows: list[list[int]] = (kinds + self._kinds * places).tolist()
        return rows

    @cached_property
    def _told(self) -> bytes:
        """The pattern on the host, where what a few elements are made of is looked at: patterns of so few repeat."""
        told: bytes = self._pattern[: self._window + _FEW].to(torch.uint8).cpu().numpy().tobytes()
        return told

    def _made_of(self, recipe: Recipe) -> tuple[object, ...]:
        """What tells a content from others: of a tensor of few elements the set that each comes from, otherwise the offset."""
        if not self._any_few:
            return recipe.offsets
        parts: list[object] = []
        for runs, offset in zip(self._runs, recipe.offsets, strict=True):
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
        for begin, end, distance in _stretches(targets, np.array(offsets, dtype=np.int64) % self._kinds):
            self._weave_stretch(stacked, targets[begin], distance, offsets[begin:end])

    def _weave_stretch(
        self, stacked: torch.Tensor, target: torch.Tensor, distance: int, offsets: Sequence[int]
    ) -> None:
        """`target`: the first of as many as there are offsets, `distance` elements from one to the next."""
        sets = self._sets_of(offsets[0])
        numel = stacked.shape[1]
        run = _run(numel)
        runs = numel // run
        mixed = runs * run
        if runs:
            word = _word((run, target.storage_offset(), distance, numel), stacked.dtype)
            words = run * stacked.itemsize // word.itemsize
            first, second = (stacked[which, :mixed].view(word).view(1, runs, words) for which in sets)
            into = target[:mixed].view(word)
            apart = distance * stacked.itemsize // word.itemsize
            # Tile by tile: of the two sets it is read once, for all targets.
            tile = max(1, min(runs, _TILE_BYTES // (words * word.itemsize)))
            together = max(1, _WOVEN_BYTES // tile)
            for at in range(0, len(offsets), together):
                begins = torch.tensor(offsets[at : at + together], device=stacked.device)
                for run_at in range(0, runs, tile):
                    here = slice(run_at, min(runs, run_at + tile))
                    count = here.stop - here.start
                    torch.where(
                        self._pattern[run_at:].unfold(0, count, 1)[begins].unsqueeze(2),
                        first[:, here],
                        second[:, here],
                        out=into.as_strided(
                            (len(begins), count, words),
                            (apart, words, 1),
                            into.storage_offset() + at * apart + run_at * words,
                        ),
                    )
        if mixed < numel:
            rest = (len(offsets), numel - mixed)
            target.as_strided(rest, (distance, 1), target.storage_offset() + mixed).copy_(stacked[sets[0], mixed:])

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


def _word(elements: Sequence[int], dtype: torch.dtype) -> torch.dtype:
    """The widest type by which memory can be moved that is made of so many elements of a dtype, or begins there."""
    return next((wide for wide in _WORDS if all(n * dtype.itemsize % wide.itemsize == 0 for n in elements)), dtype)


def _stretches(targets: Sequence[torch.Tensor], kinds: npt.NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
    """Where targets of one kind lie in order, at equal distances in one memory: begin, end, and elements from one to the next."""
    addresses = np.array([target.data_ptr() for target in targets], dtype=np.int64)
    apart, odd = np.divmod(np.diff(addresses), targets[0].itemsize)
    memory = targets[0].untyped_storage()
    shared = (addresses >= memory.data_ptr()) & (addresses < memory.data_ptr() + memory.nbytes())
    follows = (apart > 0) & (odd == 0) & shared[1:] & shared[:-1] & (kinds[1:] == kinds[:-1])
    begin = 0
    while begin < len(targets):
        end, distance = begin + 1, targets[begin].numel()
        if begin < len(follows) and follows[begin]:
            distance = int(apart[begin])
            other = np.flatnonzero(~follows[begin:] | (apart[begin:] != distance))
            end = begin + int(other[0]) + 1 if len(other) else len(targets)
        yield begin, end, distance
        begin = end
