"""The candidate, set up from the reference's state, and the checks that it must pass before anything is timed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernelevo_api.types import Correctness, Finding, Stage, Verdict
from kernelevo_evaluator.messages.runner import Construct, Constructed, Done, LoadWeights, MapRing
from kernelevo_evaluator.referee.buffers import shaped, tensors_of
from kernelevo_evaluator.referee.compare import compare, describe, local_errors, plainly_right
from kernelevo_evaluator.referee.outcome import Decided
from kernelevo_evaluator.referee.reference import is_inexact, same_bits
from kernelevo_evaluator.referee.rings import CHECK_RING, TIMING_RING, Rings
from kernelevo_evaluator.referee.runners import nonce

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from kernelevo_api.types import ErrorBudget, Mismatch
    from kernelevo_evaluator.referee.reference import Answer, Reference
    from kernelevo_evaluator.referee.runners import Runner


_LIKE_TF32 = 3e-5
"""Norm-wise errors from here to a hundred times as much are those of products whose factors lost some of their bits."""


@dataclass(slots=True)
class Tally:
    """What was compared so far: the positive evidence behind a PASSED."""

    trials: int = 0
    outputs: int = 0
    elements: int = 0
    timed_calls: int = 0
    worst: float = 0.0
    budget: float = 0.0
    classes: list[str] = field(default_factory=list)

    def correctness(self, mismatch: Mismatch | None = None) -> Correctness:
        """As a part of the evaluation."""
        return Correctness(
            trials=self.trials,
            outputs_compared=self.outputs,
            elements_compared=self.elements,
            worst_norm_error=self.worst if self.outputs else None,
            norm_budget=self.budget if self.outputs else None,
            mismatch=mismatch,
            timed_calls_compared=self.timed_calls,
            input_classes=tuple(self.classes),
        )


class Subject:
    """One candidate in its runner, seen against a reference."""

    trusted = False
    """As a side of a timing: it never meets the same content twice."""

    def __init__(self, runner: Runner, reference: Reference, budgets: Sequence[ErrorBudget], tally: Tally) -> None:
        self.runner = runner
        self.reference = reference
        self.budgets = {(budget.input_class, budget.output_index): budget for budget in budgets}
        self.tally = tally
        self.rings: dict[int, Rings] = {}
        self.findings: list[Finding] = []
        self._honest: dict[tuple[str, int], dict[str, float]] = {}
        """The reference's own errors in parts of its outputs, by input class and output, as far as checks have shown them."""

    @property
    def may_replay(self) -> bool:
        """As the reference's."""
        return self.reference.may_replay

    def construct(self) -> None:
        """Build ModelNew with the reference's init inputs and give it the reference's weights."""
        weights = self.reference.weights
        self.runner.must(
            Construct(nonce=nonce(), dtype=self.reference.policy.dtype, seed=0, init=weights.init),
            Constructed,
            (weights.init_region.fd,),
        )
        self.load_weights()

    def load_weights(self) -> None:
        """Give the candidate the reference's present weights."""
        weights = self.reference.weights
        done = self.runner.must(
            LoadWeights(nonce=nonce(), names=weights.names, layout=weights.layout), Done, (weights.region.fd,)
        )
        if done.note and not any(f.code == "weights_left" for f in self.findings):
            self.findings.append(Finding(code="weights_left", message=done.note[:1000]))

    def map_ring(self, ring: int, slots: int) -> Rings:
        """Map a ring of this many slots into the candidate's runner."""
        reference = self.reference
        rings = reference.new_rings(slots, arena=ring == TIMING_RING)
        self.runner.must(
            MapRing(
                nonce=nonce(),
                ring=ring,
                slots=slots,
                inputs=reference.inputs,
                outputs=reference.outputs,
                mutated=reference.mutated,
                arena_bytes=rings.arena_bytes,
            ),
            Done,
            rings.descriptors,
        )
        self.close_ring(ring)
        self.rings[ring] = rings
        return rings

    def close_ring(self, ring: int) -> None:
        """Give a ring's memory back."""
        rings = self.rings.pop(ring, None)
        if rings is not None:
            rings.close()

    def close(self) -> None:
        """Give all memory back and close the channel."""
        for ring in list(self.rings):
            self.close_ring(ring)
        self.runner.close()

    def call_once(self, content: Sequence[torch.Tensor]) -> torch.Tensor:
        """One call on a content, through the check ring: a private copy of the output slot's bytes.

        Raises:
            Decided: it fails, or changes an input that the reference leaves alone.
        """
        rings = self.rings[CHECK_RING]
        rings.inputs.write(0, content)
        rings.outputs.poison(0)
        self.runner.run(CHECK_RING, (0,))
        produced = rings.outputs.copy_out(0)
        self.check_inputs(content, rings.inputs.copy_out(0))
        return produced

    def check_inputs(self, content: Sequence[torch.Tensor], after: torch.Tensor) -> None:
        """Refuse a candidate that changed an input which the reference leaves alone."""
        layout = self.reference.inputs
        for index, (before, now) in enumerate(zip(content, tensors_of(layout, after), strict=True)):
            if index not in self.reference.mutated and not same_bits(before, now):
                raise Decided(
                    Verdict.INPUT_MUTATED,
                    self.runner.stage,
                    f"the candidate changed input {index}, which the reference leaves as it is; write to a tensor of its own",
                    correctness=self.tally.correctness(),
                )

    def trial(self, input_class: str, content: Sequence[torch.Tensor]) -> None:
        """Check one content, twice.

        Raises:
            Decided: a mismatch, or two answers to the same question.
        """
        answer = self.reference.answer(content)
        self._note_honest_errors(input_class, answer)
        first = self.call_once(content)
        mismatch = self.judge(input_class, first, answer)
        if mismatch is not None:
            self._refuse(Verdict.OUTPUT_MISMATCH, mismatch, self.explain(mismatch))
        second = self.call_once(content)
        mismatch = self.judge(input_class, second, answer)
        if mismatch is not None:
            self._refuse(
                Verdict.NONDETERMINISTIC,
                mismatch,
                f"the first call was right, the second call on the same inputs was not: {self.explain(mismatch)}",
            )
        self.tally.trials += 1
        if input_class not in self.tally.classes:
            self.tally.classes.append(input_class)

    def agrees(self, input_class: str, produced: torch.Tensor, own: Sequence[torch.Tensor]) -> bool:
        """A quick look at private bytes of an output slot, beside the reference's outputs at its own dtype.

        True: right beyond doubt, and counted. False: `judge` has to say.
        """
        layout = self.reference.outputs
        right = all(
            plainly_right(
                shaped(got, spec),
                shaped(want, spec),
                self.budgets[input_class, index],
                self._honest.get((input_class, index), {}),
            )
            for index, (spec, got, want) in enumerate(
                zip(layout.tensors, tensors_of(layout, produced), own, strict=True)
            )
        )
        if right:
            self.tally.outputs += len(layout.tensors)
            self.tally.elements += sum(spec.numel for spec in layout.tensors)
        return right

    def _note_honest_errors(self, input_class: str, answer: Answer) -> None:
        for index, spec in enumerate(self.reference.outputs.tensors):
            if is_inexact(spec):
                known = self._honest.setdefault((input_class, index), {})
                own, expected = shaped(answer.own[index], spec), shaped(answer.expected[index], spec)
                for family, error in local_errors(own, expected).items():
                    known[family] = max(error, known.get(family, 0.0))

    def judge(self, input_class: str, produced: torch.Tensor, answer: Answer) -> Mismatch | None:
        """Compare private bytes of an output slot with what they should be, and count it."""
        layout = self.reference.outputs
        worst: Mismatch | None = None
        for index, (spec, got, want, own) in enumerate(
            zip(layout.tensors, tensors_of(layout, produced), answer.expected, answer.own, strict=True)
        ):
            budget = self.budgets[input_class, index]
            wide = self.reference.expected.tensors[index] if is_inexact(spec) else spec
            comparison = compare(shaped(got, spec), shaped(want, wide), budget, index, input_class, shaped(own, spec))
            if comparison.mismatch is not None and worst is None:
                worst = comparison.mismatch
            if comparison.ok:
                self.tally.outputs += 1
                self.tally.elements += comparison.elements
                if comparison.norm_error >= self.tally.worst:
                    self.tally.worst, self.tally.budget = comparison.norm_error, budget.norm_rtol
        return worst

    def _refuse(self, verdict: Verdict, mismatch: Mismatch, message: str) -> None:
        raise Decided(verdict, self.runner.stage, message, correctness=self.tally.correctness(mismatch))

    def explain(self, mismatch: Mismatch) -> str:
        """One line for the candidate's author."""
        budget = self.budgets[mismatch.input_class, mismatch.output_index]
        return describe(mismatch, budget.honest_norm_error) + self._hint(mismatch)

    def _hint(self, mismatch: Mismatch) -> str:
        if any(f.code == "weights_left" for f in self.findings):
            return "; " + next(f.message for f in self.findings if f.code == "weights_left")
        if mismatch.got != mismatch.got:
            return "; part of the output was never written, or became NaN"
        policy = self.reference.policy
        if (
            policy.dtype == "float32"
            and policy.math == "ieee"
            and _LIKE_TF32 < (mismatch.norm_error or 0) < 100 * _LIKE_TF32
        ):
            return (
                '; the problem asks for IEEE float32: Triton\'s tl.dot is TF32 unless input_precision="ieee" is given'
            )
        return ""


def require_evidence(tally: Tally) -> None:
    """Nothing compared is nothing passed."""
    if tally.trials < 1 or tally.outputs < 1 or tally.elements < 1:
        raise Decided(
            Verdict.PROBLEM_FAULT,
            Stage.CHECK,
            "nothing was compared: the problem has no output with at least one element",
            correctness=tally.correctness(),
        )
