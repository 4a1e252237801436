"""The audit of a problem: is there something to check, and does nothing trivial pass?

It runs once for each problem. What it finds decides whether the problem is taken, and gives the error budgets, the floor and the
baseline that every later evaluation uses.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import torch

from kernelevo_api.types import (
    Baseline,
    BaselineKind,
    Effort,
    Finding,
    LimitKind,
    ProblemReport,
    Stage,
    TensorInfo,
)
from kernelevo_evaluator.referee.buffers import shaped
from kernelevo_evaluator.referee.classes import DECLARED, SCALED, InputClass, shape_class, sizes_of
from kernelevo_evaluator.referee.clock import Clock, Ring
from kernelevo_evaluator.referee.compare import budget_from, compare, honest_error
from kernelevo_evaluator.referee.effort import CACHE_BYTES, PLANS
from kernelevo_evaluator.referee.fresh import SETS
from kernelevo_evaluator.referee.outcome import Decided
from kernelevo_evaluator.referee.overhead import Within, per_call
from kernelevo_evaluator.referee.reference import is_inexact, same_bits
from kernelevo_evaluator.referee.rings import TIMING_RING
from kernelevo_evaluator.referee.statistics import median_ratio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelevo_api.types import ErrorBudget
    from kernelevo_evaluator.messages.layout import Layout
    from kernelevo_evaluator.referee.host import Host
    from kernelevo_evaluator.referee.reference import Reference

Tensors = list[torch.Tensor]


class Audit:
    """One problem's audit in progress."""

    def __init__(self, reference: Reference, host: Host, digest: str, name: str, seconds: float) -> None:
        self._reference = reference
        self._host = host
        self._digest = digest
        self._name = name
        self._findings: list[Finding] = []
        reference.runner.enter(Stage.AUDIT, seconds, LimitKind.CHECK_TIME)

    def carry_out(self, read_gb_per_s: float) -> ProblemReport:
        """The report; its findings say whether the problem should be refused.

        Raises:
            Decided: the reference fails.
        """
        reference = self._reference
        self._host.progress(Stage.AUDIT, "does the reference answer its inputs, and always the same?")
        seed = secrets.randbits(62)
        first, again, other = (reference.take_inputs(s) for s in (seed, seed, secrets.randbits(62)))
        budgets: list[ErrorBudget] = []
        self._look_at_inputs(first, again, other)
        if reference.varies:
            self._look_at_vary()
        outputs = reference.own_outputs(first)
        expected = reference.expected_outputs(first)
        if self._look_at_outputs(first, outputs):
            budgets = self._budgets(DECLARED.name, [(outputs, expected)])
            self._look_at_influence(first, other, expected)
            self._look_at_trivial_candidates(first, expected, other, budgets)
            self._host.progress(Stage.AUDIT, "how far off is the reference at its own precision?")
            budgets = self._all_budgets(budgets)
        self._look_at_memory()
        input_bytes = sum(t.nbytes for t in reference.inputs.tensors)
        output_bytes = sum(t.nbytes for t in reference.outputs.tensors)
        cold = reference.space.cache_bytes <= CACHE_BYTES
        self._host.progress(Stage.BASELINE, "timing the reference")
        baselines = () if self._refused else (self._eager(),)
        return ProblemReport(
            problem_digest=self._digest,
            name=self._name,
            policy=reference.policy,
            findings=tuple(self._findings),
            inputs=_describe(reference.inputs, "input"),
            outputs=_describe(reference.outputs, "output"),
            expected_dtype=reference.precision if reference.precision != "problem" else reference.policy.dtype,
            budgets=tuple(budgets),
            compulsory_bytes=input_bytes + output_bytes,
            floor_us=input_bytes / read_gb_per_s / 1e3 if cold else None,
            baselines=baselines,
            mutates_inputs=bool(reference.mutated),
            weights=tuple(
                TensorInfo(name=name, shape=spec.shape, dtype=spec.dtype, bytes=spec.nbytes)
                for name, spec in zip(reference.weights.names, reference.weights.layout.tensors, strict=True)
            ),
        )

    @property
    def _refused(self) -> bool:
        return any(finding.refuses for finding in self._findings)

    def _find(self, code: str, message: str, *, refuses: bool = True) -> None:
        self._findings.append(Finding(code=code, message=message, refuses=refuses))

    def _look_at_inputs(self, first: Tensors, again: Tensors, other: Tensors) -> None:
        if not first:
            self._find("no_input", "get_inputs() returns no tensor: there is nothing that could vary")
            return
        if not all(same_bits(a, b) for a, b in zip(first, again, strict=True)):
            self._find(
                "unseeded_inputs",
                "get_inputs() returned other values under the same seed; draw them with torch's generator",
                refuses=False,
            )
        constant = [i for i, (a, b) in enumerate(zip(first, other, strict=True)) if same_bits(a, b)]
        if len(constant) == len(first):
            self._find(
                "constant_inputs", "get_inputs() returns the same values whatever the seed: its answer could be stored"
            )
        elif constant:
            self._find("constant_input", f"inputs {constant} do not depend on the seed", refuses=False)

    def _look_at_vary(self) -> None:
        """What the problem's own `vary` makes is new every time, and something that the reference takes."""
        reference, base = self._reference, secrets.randbits(62)
        one, two = (reference.take_inputs(secrets.randbits(62), vary_from=base) for _ in range(2))
        if all(same_bits(a, b) for a, b in zip(one, two, strict=True)):
            self._find(
                "constant_vary",
                "vary(inputs, generator) returns the same values whatever the generator: use it to draw them",
            )
        if not all(bool(torch.isfinite(t).all()) for t in reference.own_outputs(two)):
            self._find(
                "vary_not_finite", "the reference's output holds NaN or infinity on what vary(inputs, generator) made"
            )

    def _look_at_outputs(self, content: Tensors, outputs: Tensors) -> bool:
        """False where nothing more can be learnt."""
        if not outputs or not any(t.numel() for t in outputs):
            self._find("no_output", "the reference returns no tensor with at least one element")
            return False
        if not all(bool(torch.isfinite(t).all()) for t in outputs):
            self._find("not_finite", "the reference's output holds NaN or infinity on its own inputs")
            return False
        if not all(same_bits(a, b) for a, b in zip(outputs, self._reference.own_outputs(content), strict=True)):
            repeated = self._reference.own_outputs(content)
            budgets = self._budgets(DECLARED.name, [(outputs, outputs)])
            if not self._within(outputs, repeated, budgets):
                self._find(
                    "random_forward",
                    "two calls of forward on the same inputs differ: remove the randomness (dropout is off under eval())",
                )
                return False
        return True

    def _look_at_influence(self, first: Tensors, other: Tensors, expected: Tensors) -> None:
        changed = self._reference.expected_outputs(other)
        for index, (a, b) in enumerate(zip(expected, changed, strict=True)):
            if same_bits(a, b):
                self._find("constant_output", f"output {index} is the same for other inputs: it could be stored")
        for index in range(len(first)):
            if same_bits(first[index], other[index]):
                continue
            mixed = [other[i] if i == index else tensor for i, tensor in enumerate(first)]
            try:
                outputs = self._reference.expected_outputs(mixed)
            except Decided:
                if not self._reference.runner.alive:
                    raise
                continue
            if all(same_bits(a, b) for a, b in zip(outputs, expected, strict=True)):
                self._find("input_without_influence", f"input {index} has no influence on any output")

    def _look_at_trivial_candidates(
        self, content: Tensors, expected: Tensors, other: Tensors, budgets: Sequence[ErrorBudget]
    ) -> None:
        """What anybody could return without computing anything must not pass."""
        earlier = self._reference.own_outputs(other)
        trivial: dict[str, Tensors] = {
            "zeros": [torch.zeros_like(t) for t in earlier],
            "ones": [torch.ones_like(t) for t in earlier],
            "the mean": [torch.full_like(t, t.to(torch.float64).mean().item()) for t in earlier if not t.is_complex()],
            "an earlier output": earlier,
        }
        for index, tensor in enumerate(content):
            if len(earlier) == 1 and tensor.shape == earlier[0].shape and tensor.dtype == earlier[0].dtype:
                trivial[f"a copy of input {index}"] = [tensor]
        for name, outputs in trivial.items():
            if len(outputs) == len(expected) and self._within(outputs, expected, budgets):
                self._find("trivial_passes", f"{name} would pass as the output within the tolerance")

    def _within(self, outputs: Tensors, expected: Tensors, budgets: Sequence[ErrorBudget]) -> bool:
        return all(
            compare(shaped(a, spec), shaped(e, wide if is_inexact(spec) else spec), budgets[i], i, DECLARED.name).ok
            for i, (a, e, spec, wide) in enumerate(
                zip(
                    outputs,
                    expected,
                    self._reference.outputs.tensors,
                    self._reference.expected.tensors,
                    strict=True,
                )
            )
        )

    # --- Budgets

    def _budgets(self, name: str, runs: Sequence[tuple[Tensors, Tensors]]) -> list[ErrorBudget]:
        policy = self._reference.policy
        budgets = []
        for index, spec in enumerate(self._reference.outputs.tensors):
            errors = [
                honest_error(own[index], expected[index]) if is_inexact(spec) else (0.0, 0.0) for own, expected in runs
            ]
            budgets.append(
                budget_from(
                    name,
                    index,
                    runs[0][0][index].dtype,
                    max(largest for largest, _ in errors),
                    max(norm for _, norm in errors),
                    policy.rtol,
                    policy.atol,
                )
            )
        return budgets

    def _run_class(self, input_class: InputClass) -> tuple[Tensors, Tensors]:
        content = self._reference.take_inputs(scale=input_class.scale, shift=input_class.shift)
        return self._reference.own_outputs(content), self._reference.expected_outputs(content)

    def _all_budgets(self, declared: list[ErrorBudget]) -> list[ErrorBudget]:
        runs = []
        for _ in range(3):
            self._reference.construct()
            runs.append(self._run_class(DECLARED))
        budgets = [
            max((a, b), key=lambda budget: budget.norm_rtol)
            for a, b in zip(declared, self._budgets(DECLARED.name, runs), strict=True)
        ]
        if any(spec.dtype in ("float16", "bfloat16", "float32", "float64") for spec in self._reference.inputs.tensors):
            try:
                scaled = [self._run_class(SCALED) for _ in range(2)]
            except Decided:
                if not self._reference.runner.alive:
                    raise
                scaled = []
            if scaled and all(
                bool(torch.isfinite(t).all())
                for own, expected in scaled
                for t in (*own, *expected)
                if t.is_floating_point()
            ):
                budgets += self._budgets(SCALED.name, scaled)
        for text in self._reference.policy.shapes:
            with self._reference.resized(sizes_of(text)):
                runs = [self._run_class(DECLARED) for _ in range(2)]
                budgets += self._budgets(shape_class(text), runs)
        return budgets

    # --- Size and time

    def _look_at_memory(self) -> None:
        reference = self._reference
        needed, memory = memory_needed(reference), reference.space.memory_bytes
        if needed > memory * MEMORY_SHARE:
            self._find(
                "too_large",
                f"reference and candidate together need {needed / 2**30:.1f} GiB for their inputs, outputs and weights; "
                f"of {memory / 2**30:.1f} GiB they may take {MEMORY_SHARE:.0%}",
            )
        elif 8 * reference.slot_bytes > reference.space.ring_bytes * 4:
            self._find(
                "large_inputs",
                f"one input set and its outputs take {reference.slot_bytes / 2**20:.0f} MiB: few fit in a ring",
                refuses=False,
            )
        if reference.mutated:
            self._find(
                "mutates_inputs",
                f"forward changes inputs {list(reference.mutated)}: what it leaves there counts as an output",
                refuses=False,
            )
        if reference.precision == "problem" and any(is_inexact(spec) for spec in reference.outputs.tensors):
            self._find(
                "no_double_precision",
                "the reference does not run in float64: what is right is what it answers at its own dtype",
                refuses=False,
            )

    def _eager(self) -> Baseline:
        """The reference as it is, in microseconds a call, by its own clock; what does not grow with the calls is subtracted."""
        reference, contents = self._reference, self._reference.make_contents()
        ring = Ring.choose(reference.call_seconds, reference.slot_bytes, reference.space, contents.seconds)
        clock = Clock(self._host, contents, ring, reference.space)
        clock.map([self._reference])
        rings = self._reference.rings[TIMING_RING]
        within = Within(ring)
        blocks = []
        self._host.quiet()
        name = self._reference.runner.name
        self._host.take_freezer(name)
        self._reference.runner.spin(self._reference.space.spins)
        try:
            with self._reference.space.awake:
                for _ in range(PLANS[Effort.FULL].minimum_pairs):
                    blocks.append(clock.block(self._reference, rings, calls=ring.calls).claimed_us)
                    if reference.space.asynchronous:
                        short = clock.block(self._reference, rings, calls=ring.short)
                        within.add(blocks[-1], short.claimed_us)
        finally:
            self._reference.runner.spin(False)
            self._host.drop_freezer(name)
            self._host.loud()
        clock.release(self._reference)
        interval = median_ratio([per_call(block, within.block_us, ring.calls) for block in blocks])
        return Baseline(kind=BaselineKind.EAGER, median_us=interval.value, low_us=interval.low, high_us=interval.high)


MEMORY_SHARE = 0.8
"""Of a space's memory, for both sides of an evaluation together."""
_SMALLEST_RING = 3


def memory_needed(reference: Reference) -> int:
    """Bytes without which nothing can be compared: of both sides a smallest ring and the weights; of the referee the real input
    sets, an answer in double precision and what is compared with it."""
    one_side = _SMALLEST_RING * reference.slot_bytes + 2 * reference.weights.layout.nbytes
    return 2 * one_side + SETS * reference.inputs.nbytes + 3 * reference.expected.nbytes


def _describe(layout: Layout, name: str) -> tuple[TensorInfo, ...]:
    return tuple(
        TensorInfo(name=f"{name} {index}", shape=spec.shape, dtype=spec.dtype, bytes=spec.nbytes)
        for index, spec in enumerate(layout.tensors)
    )
