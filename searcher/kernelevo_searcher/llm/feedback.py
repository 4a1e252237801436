"""What a model is told of an evaluation: short lines in our own words, and blocks of text that others wrote.

The blocks (compiler logs, tracebacks, what a candidate printed) are an attacker's as far as a prompt is concerned; they are
kept apart here so that templates can put them between markers.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernelevo_api.types import (
    Bottleneck,
    CapturedText,
    CheckedOn,
    Evaluation,
    LimitKind,
    Mismatch,
    Timing,
    Verdict,
)
from kernelevo_searcher.prompts import number, one_line

__all__ = ["Block", "Feedback", "feedback_on"]

_DIAGNOSTICS = 8
_LAUNCHES = 8
_LONGEST_BLOCK = 6000


@dataclass(frozen=True, slots=True)
class Block:
    """Text that somebody else wrote."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Feedback:
    """Facts about one evaluation."""

    lines: tuple[str, ...] = ()
    blocks: tuple[Block, ...] = ()


_LIMITS = {
    LimitKind.BUILD_TIME: "the build took too long",
    LimitKind.PREPARE_TIME: "import, construction and first calls took too long",
    LimitKind.CHECK_TIME: "the checked calls took too long: far slower than the reference, or it hangs",
    LimitKind.RUN_TIME: "the timed calls took too long: far slower than the reference, or it hangs",
    LimitKind.MEMORY: "it used more host memory than allowed",
    LimitKind.DEVICE_MEMORY: "it used more device memory than allowed",
    LimitKind.PROCESSES: "it started more processes or threads than allowed",
    LimitKind.OUTPUT: "it printed more than allowed",
    LimitKind.FILE_SIZE: "it wrote a file larger than allowed",
    LimitKind.OPEN_FILES: "it opened more files than allowed",
    LimitKind.TEMPORARY_FILES: "its temporary files took more space than allowed",
}


_BOTTLENECKS = {
    Bottleneck.MEMORY: "the memory's bandwidth; what is left to gain is moving fewer bytes",
    Bottleneck.COMPUTE: "the arithmetic rate",
    Bottleneck.LAUNCH: "launching kernels, or the host; fewer and larger kernels would help",
    Bottleneck.NEITHER: "neither bandwidth nor arithmetic; traffic beyond the least, dependencies or too little in flight",
}


def feedback_on(evaluation: Evaluation | None) -> Feedback:
    """Lines and blocks about an evaluation; empty of blocks where everything passed."""
    if evaluation is None:
        return Feedback(("not measured yet",))
    lines = [_verdict_line(evaluation)]
    if evaluation.timing is not None:
        lines += _timing_lines(evaluation.timing)
    if evaluation.limit is not None:
        lines.append(_LIMITS.get(evaluation.limit, f"limit reached: {evaluation.limit.value}"))
    lines += _resource_lines(evaluation)
    if evaluation.verdict is Verdict.PASSED:
        return Feedback(tuple(lines))
    blocks: list[Block] = []
    if evaluation.message.strip():
        blocks.append(Block("evaluator's message", evaluation.message))
    if evaluation.correctness is not None and evaluation.correctness.mismatch is not None:
        lines += _mismatch_lines(evaluation.correctness.mismatch)
    if evaluation.error is not None:
        where = f" at line {evaluation.error.line}" if evaluation.error.line is not None else ""
        text = f"{evaluation.error.type}{where}: {evaluation.error.message}\n{evaluation.error.traceback}"
        blocks.append(Block("error of the candidate", text))
    blocks += _build_blocks(evaluation)
    ending = evaluation.sandbox_ending
    if ending is not None and ending.kind is not None:
        signal = f", signal {ending.signal}" if ending.signal is not None else ""
        lines.append(f"its process ended: {ending.kind.value}{signal}")
    for finding in evaluation.findings[:_DIAGNOSTICS]:
        at = f" (line {finding.line})" if finding.line is not None else ""
        lines.append(f"finding {finding.code}{at}: {one_line(finding.message)}")
    if (printed := _captured(evaluation.output)).strip():
        blocks.append(Block("output of the candidate", printed))
    return Feedback(tuple(lines), tuple(blocks))


def _verdict_line(evaluation: Evaluation) -> str:
    stage = (
        f" at stage {evaluation.stage.value}" if evaluation.stage and evaluation.verdict is not Verdict.PASSED else ""
    )
    checked = ", checked in an interpreter and not timed" if evaluation.checked_on is CheckedOn.INTERPRETER else ""
    return f"verdict: {evaluation.verdict.value}{stage}{checked}"


def _timing_lines(timing: Timing) -> list[str]:
    lines: list[str] = []
    if timing.speedup is not None:
        ratio = timing.speedup
        lines.append(
            f"speedup over the baseline: {number(ratio.value)}x, {ratio.confidence:.0%} interval "
            f"[{number(ratio.low)}, {number(ratio.high)}]"
        )
    if timing.candidate_us is not None:
        against = f", the baseline {number(timing.baseline_us)} µs" if timing.baseline_us is not None else ""
        lines.append(f"one call takes {number(timing.candidate_us)} µs{against}")
        if timing.floor_us:
            share = timing.floor_us / timing.candidate_us
            lines.append(
                f"moving the compulsory bytes alone takes {number(timing.floor_us)} µs at the measured bandwidth: "
                f"the candidate runs at {share:.0%} of that limit"
            )
    if timing.stopped_at_bound:
        lines.append("timing stopped early: it cannot beat the best")
    lines += [f"remark: {one_line(remark)}" for remark in timing.remarks[:4]]
    return lines


def _resource_lines(evaluation: Evaluation) -> list[str]:
    lines: list[str] = []
    artefacts = evaluation.build.artefacts if evaluation.build is not None else ()
    for kernel in [kernel for artefact in artefacts for kernel in artefact.kernels][:_LAUNCHES]:
        facts = [
            f"{value} {unit}"
            for value, unit in (
                (kernel.registers, "registers a thread"),
                (kernel.shared_memory_bytes, "bytes of shared memory"),
                (kernel.spill_bytes, "bytes spilled"),
            )
            if value
        ]
        if facts:
            lines.append(f"kernel {one_line(kernel.kernel, 80)}: {', '.join(facts)}")
    profile = evaluation.profile
    if profile is None:
        return lines
    for launch in profile.launches[:_LAUNCHES]:
        lines.append(
            f"launched {launch.count} times a call, {number(launch.total_us)} µs in all: {one_line(launch.kernel, 80)}"
        )
    if profile.bottleneck is not None:
        lines.append(f"a call is held up by: {_BOTTLENECKS[profile.bottleneck]}")
    return lines


def _mismatch_lines(mismatch: Mismatch) -> list[str]:
    lines = [
        f"output {mismatch.output_index}, inputs '{one_line(mismatch.input_class, 60)}': {mismatch.elements_wrong} of "
        f"{mismatch.elements} elements are wrong",
        f"the worst is at index {list(mismatch.index)}: got {mismatch.got:.7g}, expected {mismatch.expected:.7g}, "
        f"error {mismatch.error:.3g}, allowed {mismatch.budget:.3g}",
    ]
    if mismatch.norm_error is not None and mismatch.norm_budget is not None:
        lines.append(f"norm-wise relative error {mismatch.norm_error:.3g}, allowed {mismatch.norm_budget:.3g}")
    return lines


def _build_blocks(evaluation: Evaluation) -> list[Block]:
    build = evaluation.build
    if build is None or evaluation.verdict not in {Verdict.COMPILE_ERROR, Verdict.LOAD_ERROR, Verdict.TIMEOUT}:
        return []
    errors = [diagnostic for diagnostic in build.diagnostics if diagnostic.severity == "error"]
    shown = (errors or list(build.diagnostics))[:_DIAGNOSTICS]
    if shown:
        text = "\n".join(
            f"{item.file or 'source'}:{item.line or '?'}: {item.severity}: {item.message}"
            + (f"\n{item.excerpt}" if item.excerpt else "")
            for item in shown
        )
        return [Block("compiler's diagnostics", text[:_LONGEST_BLOCK])]
    log = _captured(build.log)
    return [Block("build log", log)] if log.strip() else []


def _captured(text: CapturedText | None) -> str:
    if text is None:
        return ""
    head, tail = text.head[-_LONGEST_BLOCK:], text.tail[-_LONGEST_BLOCK:]
    if not tail or tail == head:
        return head
    return f"{head}\n[...]\n{tail}" if head else tail
