"""A problem, attached: its warm reference runner, its layouts, real input sets, weights, and expected outputs on demand."""

from __future__ import annotations

import os
import secrets
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kernelevo_api.types import LimitKind, Stage, TimingPolicy, Verdict
from kernelevo_evaluator.messages.layout import FLOATING, Layout
from kernelevo_evaluator.messages.runner import (
    CompileModel,
    Construct,
    Constructed,
    Counted,
    CountOperations,
    Described,
    DescribeOutputs,
    Done,
    LoadModule,
    LoadWeights,
    MakeInputs,
    MapRing,
    RunExpected,
    StoreInputs,
    StoreWeights,
)
from kernelevo_evaluator.referee import effort as settings
from kernelevo_evaluator.referee.buffers import Region, tensors_of
from kernelevo_evaluator.referee.fresh import SETS, Contents, Drawn, Mixer
from kernelevo_evaluator.referee.outcome import Decided
from kernelevo_evaluator.referee.rings import CHECK_RING, TIMING_RING, Rings, allocated_bytes
from kernelevo_evaluator.referee.runners import Runner, RunnerFailed, nonce

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Sequence

    from kernelevo_api.types import ProblemPolicy
    from kernelevo_evaluator.messages.layout import TensorSpec
    from kernelevo_evaluator.referee.host import Host
    from kernelevo_evaluator.referee.spaces import Space

_DEVICE_CALLS = 33
_ARENA_SPARE = 256 << 20


@dataclass(frozen=True, slots=True)
class Weights:
    """One state of the reference, in a sealed memfd, with the init inputs that go with it."""

    names: tuple[str, ...]
    layout: Layout
    region: Region
    init: Layout
    init_region: Region


@dataclass(frozen=True, slots=True)
class Answer:
    """Outputs of the reference for one content, flat: as they should be (float64 where it runs so), and at its own dtype."""

    expected: list[torch.Tensor]
    own: list[torch.Tensor]


class Reference:
    """The reference of one problem under one set of sizes. Whatever fails here is the problem's fault, not a candidate's."""

    trusted = True
    """As a side of a timing: it may meet the same content again."""

    def __init__(self, runner: Runner, host: Host, policy: ProblemPolicy, space: Space) -> None:
        self.runner = runner
        self._host = host
        self.space = space
        self.policy = policy
        self.sizes: dict[str, int] | None = None
        self.mutated: tuple[int, ...] = ()
        self.varies = False
        """Whether the problem has a `vary` of its own."""
        self.inputs: Layout
        self.outputs: Layout
        self.expected: Layout
        self.precision = "problem"
        self.weights: Weights
        self.rings: dict[int, Rings] = {}
        self.call_seconds = 0.0
        self._mixed: list[list[torch.Tensor]] = []
        self._mixer: Mixer | None = None
        """Real input sets that contents of timed calls are mixed from."""

    # --- Setting up

    def construct(self, *, perturb: bool = True) -> None:
        """Build the model under a new secret seed and take its weights out.

        `perturb`: change trained parameters at random, so that weights which start as ones or zeros cannot be left out; the
        reference gets the changed ones too.
        """
        made = self.runner.must(
            Construct(nonce=nonce(), dtype=self.policy.dtype, seed=secrets.randbits(62), sizes=self.sizes), Constructed
        )
        assert made.init is not None
        self._refuse_huge(made.weights, "the model's state")
        self._refuse_huge(made.init, "get_init_inputs()")
        weights = Weights(
            made.names,
            made.weights,
            Region(made.weights, 1, "weights", self.space),
            made.init,
            Region(made.init, 1, "init", self.space),
        )
        self.runner.must(StoreWeights(nonce=nonce()), Done, (weights.region.fd, weights.init_region.fd))
        if perturb:
            generator = torch.Generator().manual_seed(secrets.randbits(62))
            for tensor, trained in zip(weights.region.views(0), made.parameters, strict=True):
                if trained and tensor.is_floating_point() and tensor.numel():
                    _perturb(tensor, generator)
            self.runner.must(
                LoadWeights(nonce=nonce(), names=made.names, layout=made.weights), Done, (weights.region.fd,)
            )
        self.weights = weights

    def make_inputs(
        self, seed: int | None = None, scale: float = 1.0, shift: float = 0.0, vary_from: int | None = None
    ) -> Layout:
        """Let the runner draw inputs, under a secret seed unless one is given; it holds them until they are stored.

        `vary_from`: by the problem's `vary`, from the inputs of this seed.
        """
        command = MakeInputs(
            nonce=nonce(),
            seed=secrets.randbits(62) if seed is None else seed,
            scale=scale,
            shift=shift,
            vary_from=vary_from,
        )
        return self.runner.must(command, Described).layout

    def take_inputs(
        self, seed: int | None = None, scale: float = 1.0, shift: float = 0.0, vary_from: int | None = None
    ) -> list[torch.Tensor]:
        """Draw inputs and return private copies, flat, in the layout's order."""
        layout = self.make_inputs(seed, scale, shift, vary_from)
        if layout != self.inputs:
            what = "get_inputs()" if vary_from is None else "vary(inputs, generator)"
            raise Decided(
                Verdict.PROBLEM_FAULT,
                self.runner.stage,
                f"{what} returned other shapes, dtypes or structure than before: they must not depend on the seed",
                code="changing_shapes",
            )
        self.runner.must(StoreInputs(nonce=nonce(), ring=CHECK_RING, slot=0), Done)
        return tensors_of(self.inputs, self.rings[CHECK_RING].inputs.copy_out(0))

    def describe(self) -> None:
        """Learn the layouts, and which precision the expected outputs can have, and map the ring for checks.

        Raises:
            Decided: the reference fails, at its own dtype.
        """
        self.inputs = self.make_inputs()
        self.outputs = self._outputs_at("problem")
        self.expected, self.precision = self.outputs, "problem"
        if any(is_inexact(spec) for spec in self.outputs.tensors):
            try:
                wide = self._ask_outputs("float64")
            except RunnerFailed:
                wide = None
            if wide is not None and [t.shape for t in wide.tensors] == [t.shape for t in self.outputs.tensors]:
                self.expected, self.precision = wide, "float64"
        self._refuse_huge(self.inputs, "one set of inputs")
        self._refuse_huge(self.outputs, "one set of outputs")
        self._refuse_huge(self.expected, "one set of outputs in double precision")
        self.map_ring(CHECK_RING, 1)

    def _refuse_huge(self, layout: Layout, what: str) -> None:
        """What a runner says it has, the referee would have to hold too: a claim, bounded by the host's memory."""
        most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 16
        if layout.nbytes > most:
            raise Decided(
                Verdict.PROBLEM_FAULT,
                self.runner.stage,
                f"{what} would take {layout.nbytes / 2**20:.0f} MiB; this host takes at most {most / 2**20:.0f} MiB",
                code="too_large",
            )

    def _ask_outputs(self, precision: str) -> Layout:
        return self.runner.ask(
            DescribeOutputs(nonce=nonce(), precision=precision, mutated=self.mutated), Described
        ).layout

    def _outputs_at(self, precision: str) -> Layout:
        try:
            return self._ask_outputs(precision)
        except RunnerFailed as error:
            raise self.runner.verdict_of(error.failure) from None

    def look_for_vary(self) -> None:
        """Learn whether the problem has a `vary`.

        Raises:
            Decided: it has one, which fails.
        """
        try:
            self.runner.ask(MakeInputs(nonce=nonce(), seed=secrets.randbits(62), vary_from=0), Described)
        except RunnerFailed as error:
            if error.failure.kind != "unsupported":
                raise self.runner.verdict_of(error.failure) from None
        else:
            self.varies = True

    def find_mutated(self) -> tuple[int, ...]:
        """Which inputs a call changes; they count as outputs from then on. The check ring is mapped anew if there are any."""
        before = self.take_inputs()
        self.rings[CHECK_RING].inputs.write(0, before)
        self.runner.run(CHECK_RING, (0,))
        after = tensors_of(self.inputs, self.rings[CHECK_RING].inputs.copy_out(0))
        self.mutated = tuple(i for i, (a, b) in enumerate(zip(before, after, strict=True)) if not same_bits(a, b))
        if self.mutated:
            self.describe()
        return self.mutated

    @contextmanager
    def resized(self, sizes: dict[str, int]) -> Iterator[None]:
        """The reference at other sizes for a while, with a model, layouts and a check ring of their own."""
        try:
            self.sizes = sizes
            self.construct()
            self.describe()
            yield
        finally:
            self.sizes = None
            if self.runner.alive:
                self.construct()
                self.describe()

    def map_ring(self, ring: int, slots: int) -> Rings:
        """Map a ring of this many slots into the reference runner, in place of an earlier one of that number."""
        rings = self.new_rings(slots, expected=ring == CHECK_RING, arena=ring == TIMING_RING)
        self.runner.must(
            MapRing(
                nonce=nonce(),
                ring=ring,
                slots=slots,
                inputs=self.inputs,
                outputs=self.outputs,
                mutated=self.mutated,
                expected=self.expected if rings.expected else None,
                expected_slots=1 if rings.expected else 0,
                arena_bytes=rings.arena_bytes,
            ),
            Done,
            rings.descriptors,
        )
        self.close_ring(ring)
        self.rings[ring] = rings
        return rings

    def new_rings(self, slots: int, *, expected: bool = False, arena: bool = False) -> Rings:
        """Memory for a ring of this many slots; `arena`: with one, in a space that has them."""
        space = self.space
        wanted = 0
        if arena and space.arena:
            # Room for the outputs of every call, and for what else a call allocates. Graphs keep theirs: of the long block, of
            # the short one, a third of it, and of what is rehearsed.
            calls = slots + slots // 3 + space.rehearsed if self.may_replay else slots
            wanted = sum(allocated_bytes(spec.nbytes, calls) for spec in self.outputs.tensors)
            wanted += 16 * self.slot_bytes + _ARENA_SPARE
        return Rings(
            Region(self.inputs, slots, "inputs", space),
            Region(self.outputs, 1 if wanted else slots, "outputs", space),
            Region(self.expected, 1, "expected", space) if expected else None,
            space.allocate(wanted, "arena") if wanted else None,
        )

    @property
    def may_replay(self) -> bool:
        """Whether its calls are so short, on a device, that launching them may be what takes time: graphs are tried then."""
        short = self.call_seconds < settings.REPLAY_BELOW_SECONDS
        return self.space.arena and short and self.policy.timing is not TimingPolicy.LATENCY

    def close_ring(self, ring: int) -> None:
        """Give a ring's memory back."""
        rings = self.rings.pop(ring, None)
        if rings is not None:
            rings.close()

    # --- Using it

    def own_outputs(self, content: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Outputs at the problem's own dtype for a content; private, flat."""
        rings = self.rings[CHECK_RING]
        rings.inputs.write(0, content)
        rings.outputs.poison(0)
        self.runner.run(CHECK_RING, (0,))
        return tensors_of(self.outputs, rings.outputs.copy_out(0))

    def expected_outputs(self, content: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """As `answer`, what the outputs should be."""
        return self.answer(content).expected

    def count_operations(self) -> int:
        """Of the products of one call, on the inputs that lie in the check ring; a multiply-add is two.

        Raises:
            RunnerFailed: its operators cannot be counted.
        """
        return self.runner.ask(CountOperations(nonce=nonce(), ring=CHECK_RING, slot=0), Counted).operations

    def answer(self, content: Sequence[torch.Tensor]) -> Answer:
        """What the outputs should be for a content, and what the reference's own are; private, flat.

        Integer and boolean outputs come from the reference at its own dtype: at another precision an argmax may differ.
        """
        own = self.own_outputs(content)
        if self.precision == "problem":
            return Answer(own, own)
        rings = self.rings[CHECK_RING]
        assert rings.expected is not None
        rings.inputs.write(0, content)
        rings.expected.poison(0)
        self.runner.must(RunExpected(nonce=nonce(), ring=CHECK_RING, slot=0, into=0, precision=self.precision), Done)
        expected = tensors_of(self.expected, rings.expected.copy_out(0))
        return Answer(
            [
                wide if is_inexact(spec) else narrow
                for spec, wide, narrow in zip(self.outputs.tensors, expected, own, strict=True)
            ],
            own,
        )

    def make_contents(self) -> Contents:
        """Where the contents of timed calls come from.

        The problem's own `vary` where it has one. Otherwise real input sets are mixed element by element, if the reference takes
        what that makes; where it does not, `get_inputs` draws every content.
        """
        if self.varies:
            base = secrets.randbits(62)
            return self._drawn(lambda seed: self.take_inputs(seed, vary_from=base))
        if self._mixer is not None:
            # No candidate saw its sets, nor will see one whole: the next one's contents are other mixtures of them.
            if self._mixer.worn:
                self._mixer = Mixer(self._mixed)
            return self._mixer
        sets = [self.take_inputs() for _ in range(SETS)]
        mixer = Mixer(sets)
        try:
            outputs = self.own_outputs(mixer.content(mixer.draw(1)[0]))
        except Decided:
            if not self.runner.alive:
                raise
            return self._drawn(self.take_inputs)
        if not all(bool(torch.isfinite(t).all()) for t in outputs if t.is_floating_point()):
            return self._drawn(self.take_inputs)
        if SETS * self.inputs.nbytes <= self.space.kept_bytes:
            self._mixed, self._mixer = sets, mixer
        return mixer

    def _drawn(self, take: Callable[[int], list[torch.Tensor]]) -> Drawn:
        took = []
        for _ in range(3):
            began = time.monotonic()
            take(secrets.randbits(62))
            took.append(time.monotonic() - began)
        return Drawn(take, lambda: self._host.running(self.runner.name), min(took))

    def estimate_call(self) -> float:
        """Seconds that one call takes, by the outside clock: the best of a few, once the first calls have warmed it up.

        On a device it is the slope over runs of few and many calls: a call may be shorter than the message that starts it.
        """
        few, many = (0,), (0,) * (_DEVICE_CALLS if self.space.device.type == "cuda" else 1)
        best = {len(calls): float("inf") for calls in (few, many)}
        until = time.monotonic() + 0.2
        for number in range(200):
            for calls in dict.fromkeys((few, many)):
                start = time.perf_counter()
                self.runner.run(CHECK_RING, calls)
                best[len(calls)] = min(best[len(calls)], time.perf_counter() - start)
            if number >= 5 and time.monotonic() > until:
                break
        if len(many) == 1:
            self.call_seconds = best[1]
        else:
            slope = (best[len(many)] - best[1]) / (len(many) - 1)
            self.call_seconds = max(slope, best[len(many)] / len(many) / 4)
        return self.call_seconds

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot of a ring, inputs and outputs."""
        return self.inputs.nbytes + self.outputs.nbytes

    def close(self) -> None:
        """Give all memory back and close the channel."""
        for ring in list(self.rings):
            self.close_ring(ring)
        self.runner.close()


def attach(
    sock: socket.socket,
    host: Host,
    source: str,
    policy: ProblemPolicy,
    space: Space,
    seconds: float,
    *,
    name: str = "reference",
    compiled: bool = False,
) -> Reference:
    """Load a problem into a fresh runner; `compiled`: its model under torch.compile, to be a baseline.

    Raises:
        Decided: the problem cannot be loaded, built or called.
    """
    runner = Runner(name, sock, host, space, blame=Verdict.PROBLEM_FAULT)
    runner.enter(Stage.PREPARE, seconds, LimitKind.PREPARE_TIME)
    runner.must(LoadModule(nonce=nonce(), source=source, role="reference", math=policy.math), Done)
    reference = Reference(runner, host, policy, space)
    reference.construct()
    reference.describe()
    reference.look_for_vary()
    reference.find_mutated()
    if compiled:
        runner.must(CompileModel(nonce=nonce()), Done)
    reference.take_inputs()
    host.quiet()
    try:
        reference.estimate_call()
    finally:
        host.loud()
    return reference


def is_inexact(spec: TensorSpec) -> bool:
    """Whether a tensor holds floating or complex numbers, which have a precision."""
    return spec.dtype in FLOATING or spec.dtype.startswith("complex")


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two flat tensors hold the same bytes, NaNs included."""
    return bool(torch.equal(a.view(torch.uint8), b.view(torch.uint8)))


def _perturb(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Multiply by a factor in [0.75, 1.25]; a tensor of zeros gets values in [-0.1, 0.1]."""
    noise = torch.rand(tensor.shape, generator=generator, dtype=torch.float32)
    if bool((tensor == 0).all()):
        tensor.copy_((noise - 0.5) * 0.2)
    else:
        tensor.mul_((noise * 0.5 + 0.75).to(tensor.device, tensor.dtype))
