"""Blocks of calls, by the referee's own clock.

A block is one message that starts n calls over slots of fresh content; its clock stops only when outputs of that very block were
read at secret places: whole sampled slots on a processor, bytes all over them on a device (see `probes`).
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from kernelevo_evaluator.messages.runner import CaptureCalls, CloseRing, Done
from kernelevo_evaluator.referee import effort as settings
from kernelevo_evaluator.referee.fresh import Recipe
from kernelevo_evaluator.referee.rings import TIMING_RING, Rings
from kernelevo_evaluator.referee.runners import RunnerFailed, nonce
from kernelevo_evaluator.referee.spent import Spent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kernelevo_evaluator.referee.fresh import Contents
    from kernelevo_evaluator.referee.host import Host
    from kernelevo_evaluator.referee.runners import Runner
    from kernelevo_evaluator.referee.spaces import Space


class Side(Protocol):
    """What is timed: a reference or a candidate."""

    runner: Runner
    rings: dict[int, Rings]
    trusted: bool
    """Whether it may meet the same content again: a reference has nothing to gain from it."""

    @property
    def may_replay(self) -> bool:
        """Whether its calls are so short, on a device, that graphs are tried."""
        ...

    def close(self) -> None:
        """Give all memory back and close the channel."""
        ...

    def map_ring(self, ring: int, slots: int) -> Rings:
        """Map a ring into the side's runner."""
        ...

    def close_ring(self, ring: int) -> None:
        """Give a ring's memory back."""
        ...


@dataclass(frozen=True, slots=True)
class Ring:
    """How the ring is used: `calls` for a block, each on a slot of its own."""

    calls: int
    rounds: int
    """Blocks whose times are added up for one measurement, where memory does not allow one long enough."""

    @property
    def short(self) -> int:
        """Calls of the short block that tells what in the reference's own time does not grow with its calls."""
        return max(1, self.calls // 8)

    @staticmethod
    def choose(call_seconds: float, slot_bytes: int, space: Space, content_seconds: float = 0.0) -> Ring:
        """A ring for blocks of the space's length, within its memory, whose content is made in reasonable time."""
        most = max(3, min(space.ring_slots, space.ring_bytes // slot_bytes))
        if content_seconds:
            most = max(3, min(most, int(settings.CONTENTS_SECONDS / content_seconds)))
        for_time = max(3, round(space.block_seconds / call_seconds))
        calls = min(most, for_time)
        return Ring(calls, max(1, min(settings.ROUNDS, round(for_time / calls))))


@dataclass(frozen=True, slots=True)
class Sampled:
    """A timed call that will be checked: private copies of its output slot and of its input slot after the call."""

    recipe: Recipe
    outputs: torch.Tensor
    inputs: torch.Tensor


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a side: microseconds in all, by the outside clock and by the runner's own.

    `answered_us`: by the outside clock, until the runner's answer was there, before outputs were read.
    `host_us`: what the referee's sweep of the caches took just before, the same work every time: the host's pace.
    `sampled`: calls whose outputs the clock waited for, in random order; none on a device. `others`: the rest, likewise, as call
    and slot.
    `recipes`: of the content in each slot, of an untrusted side.
    """

    outside_us: float
    claimed_us: float
    answered_us: float
    host_us: float
    sampled: list[Sampled]
    others: list[tuple[int, int]]
    recipes: dict[int, Recipe]


class Clock:
    """Times blocks of a side over its ring, each from cold caches."""

    def __init__(
        self, host: Host, contents: Contents, ring: Ring, space: Space, ring_of_replays: Ring | None = None
    ) -> None:
        """Before every block twice as much is swept as the space's last-level cache holds.

        `ring_of_replays`: the ring where blocks are replays of graphs, whose calls may be much shorter.
        """
        self._host = host
        self._space = space
        swept = 2 * min(space.cache_bytes, settings.CACHE_BYTES)
        self._sweep = torch.zeros(swept // 8, dtype=torch.int64, device=space.device)
        self._contents = contents
        self.ring = ring
        self._ring_of_replays = ring_of_replays or ring
        self.replays = False
        """Whether blocks are replays of captured graphs."""
        self._random = random.SystemRandom()
        self._copies: list[torch.Tensor] = []
        self.spent = Spent()

    def prepare(self, side: Side) -> Rings:
        """Map the timing ring and call every address once, untimed, on content that is not used again."""
        rings = side.map_ring(TIMING_RING, self.ring.calls)
        self.renew(rings, range(self.ring.calls))
        rings.places = side.runner.run(TIMING_RING, range(self.ring.calls)).places
        return rings

    def capture(self, sides: Sequence[Side]) -> bool:
        """Map the timing ring of every side and let them capture their blocks in CUDA graphs, which are used from then on.

        False where one of them cannot: they have to be prepared for calls then.
        """
        ring, self.ring = self.ring, self._ring_of_replays
        self.replays = all(self._captured(side) for side in sides)
        if not self.replays:
            self.ring = ring
        return self.replays

    def map(self, sides: Sequence[Side]) -> None:
        """Prepare every side: for replays where its calls are short and all can be captured, for calls otherwise."""
        if not (sides[0].may_replay and self.capture(sides)):
            for side in sides:
                self.prepare(side)

    def release(self, side: Side) -> None:
        """Give a side's timing ring back where it takes much of a device's memory."""
        if self._space.arena and TIMING_RING in side.rings and side.runner.alive:
            # The runner first: memory that its owner has let go counts as the runner's while that has it mapped.
            try:
                side.runner.must(CloseRing(nonce=nonce(), ring=TIMING_RING), Done)
            finally:
                side.close_ring(TIMING_RING)

    def _captured(self, side: Side) -> bool:
        rings = side.map_ring(TIMING_RING, self.ring.calls)
        self.renew(rings, range(self.ring.calls))
        # What a model does at its first calls does not belong in a graph.
        side.runner.run(TIMING_RING, range(self._rehearsed))
        # Only of a trusted side are short blocks of use.
        short = (self.ring.short,) if side.trusted else ()
        for calls in dict.fromkeys((self._rehearsed, *short, self.ring.calls)):
            try:
                captured = side.runner.ask(CaptureCalls(nonce=nonce(), ring=TIMING_RING, calls=calls), Done)
            except RunnerFailed:
                return False
            rings.captured[calls] = captured.places
            side.runner.replay(TIMING_RING, calls)
            rings.places = captured.places
        return True

    def _call(self, side: Side, order: Sequence[int], once_sent: Callable[[], None]) -> Done:
        """Let a side make its calls on these slots, as blocks are made here."""
        if self.replays:
            return side.runner.replay(TIMING_RING, len(order), once_sent)
        return side.runner.run(TIMING_RING, order, once_sent)

    @property
    def _rehearsed(self) -> int:
        return min(self._space.rehearsed, self.ring.calls // 3)

    def renew(self, rings: Rings, slots: Sequence[int]) -> dict[int, Recipe]:
        """Fill slots with content that no call has seen, and poison their outputs."""
        with self.spent.on("fresh inputs"):
            recipes = dict(zip(slots, self._contents.draw(len(slots)), strict=True))
            rings.poison_arena()
            # In the order of memory, in which many are woven at once.
            self._contents.fill([(recipe, rings.inputs.views(slot)) for slot, recipe in sorted(recipes.items())])
            if rings.arena is None:
                for slot in slots:
                    rings.outputs.poison(slot)
            return recipes

    def sweep(self) -> float:
        """Push everything else out of the caches; returns the microseconds it took, which tell how fast the host is just now."""
        self._space.synchronize()
        began = time.perf_counter_ns()
        self._sweep.add_(1)
        self._space.synchronize()
        return (time.perf_counter_ns() - began) / 1000

    def content(self, recipe: Recipe) -> list[torch.Tensor]:
        """A private copy of a content."""
        return recipe.given if recipe.given is not None else self._contents.content(recipe)

    def block(self, side: Side, rings: Rings, *, calls: int, sample: bool = False) -> Block:
        """Time one block of a side, which is frozen before and after.

        All content is written while the side stands still, its command waits for it when it is let run, and the clock starts just
        before that: there is no moment in which it could work ahead. Nobody waits for the answer to `thaw`, which would come
        when it runs already. `sample`: keep sampled outputs, to be checked; what the clock waits for is the same either way.
        """
        order = list(range(self.ring.calls))
        start = self._random.randrange(len(order))
        # A graph holds its calls in their order.
        order = (order if self.replays else order[start:] + order[:start])[:calls]
        self._rehearse(side, order)
        recipes = {} if side.trusted and not self._space.renews_all else self.renew(rings, order)
        return self._timed(side, rings, order, recipes, self.sweep(), sample=sample)

    def lone(
        self, side: Side, rings: Rings, *, content: list[torch.Tensor] | None = None, sample: bool = False
    ) -> Block:
        """Time one call of a side, which is frozen before and after: nothing but its own input lies there when it begins.

        `content`: that input, in place of a mixture.

        Nothing is swept: what is asked is what the call costs beside others, whose caches are warm too.
        """
        slot = self._random.randrange(self.ring.calls)
        recipes = self.renew(rings, [slot]) if content is None else self._given(rings, slot, content)
        return self._timed(side, rings, [slot], recipes, 0.0, sample=sample)

    def _given(self, rings: Rings, slot: int, content: list[torch.Tensor]) -> dict[int, Recipe]:
        with self.spent.on("fresh inputs"):
            rings.inputs.write(slot, content)
            rings.outputs.poison(slot)
        return {slot: Recipe((), content)}

    def look(self, rings: Rings, block: Block, at: tuple[int, int]) -> Sampled:
        """One of a block's other calls, whose side is frozen still."""
        call, slot = at
        copy = torch.empty(rings.outputs.layout.nbytes, dtype=torch.uint8, device=self._space.device)
        rings.copy_output(call, slot, copy)
        return Sampled(block.recipes[slot], copy, rings.inputs.copy_out(slot))

    def _timed(
        self, side: Side, rings: Rings, order: list[int], recipes: dict[int, Recipe], host: float, *, sample: bool
    ) -> Block:
        shuffled = self._random.sample(range(len(order)), len(order))
        probes = rings.choose_probes(len(order))
        copies = [] if probes else self._copies_for(rings.outputs.layout.nbytes)
        # As many for a short block as for a long one.
        chosen = [shuffled[i % len(shuffled)] for i in range(len(copies))]
        if probes and self.replays:
            probes.aim(rings.captured[len(order)])
        began = 0

        def let_run() -> None:
            nonlocal began
            began = time.perf_counter_ns()
            self._host.thaw_soon(side.runner.name)

        try:
            done = self._call(side, order, let_run)
            answered = time.perf_counter_ns() - began
            rings.places = rings.captured[len(order)] if self.replays else done.places
            if probes:
                if not self.replays:
                    probes.aim(rings.places)
                probes.read()
            for call, into in zip(chosen, copies, strict=True):
                rings.copy_output(call, order[call], into)
            self._space.synchronize()
            outside = time.perf_counter_ns() - began
        finally:
            self._host.freeze(side.runner.name)
        kept = list(zip(chosen, copies, strict=True))[: len(order)] if sample else []
        return Block(
            outside_us=outside / 1000,
            claimed_us=done.claimed_ns / 1000,
            answered_us=answered / 1000,
            host_us=host,
            sampled=[
                Sampled(recipes[order[call]], copy.clone(), rings.inputs.copy_out(order[call])) for call, copy in kept
            ],
            others=[(call, order[call]) for call in shuffled[len(copies) :]] if sample else [],
            recipes=recipes,
        )

    def _copies_for(self, nbytes: int) -> list[torch.Tensor]:
        """Where sampled outputs are copied to before the clock stops: more of small ones."""
        count = min(max(settings.SAMPLES, settings.SAMPLED_BYTES // max(1, nbytes)), settings.MOST_SAMPLES)
        while len(self._copies) < count:
            self._copies.append(torch.zeros(nbytes, dtype=torch.uint8, device=self._space.device))
        return self._copies

    def _rehearse(self, side: Side, order: Sequence[int]) -> None:
        """A few calls on content that the side knows already; it is frozen again before new content is written."""
        calls = order[: self._rehearsed]
        if calls:
            try:
                self._call(side, calls, lambda: self._host.thaw_soon(side.runner.name))
            finally:
                self._host.freeze(side.runner.name)
