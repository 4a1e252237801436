"""One evaluation in full, for people: what happened, where, how sure, and what to look at.

Texts that come from candidates and evaluators pass through `plain`, so that none of them can command a terminal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelevo_api.types import Verdict
from kernelevo_searcher.wording import one_line, plain, ratio_text

if TYPE_CHECKING:
    from kernelevo_api.types import Evaluation

__all__ = ["describe_evaluation"]

_EXCERPT_LINES = 12
_MOST_LAUNCHES = 12
"""Kernels of a list that are shown."""


def describe_evaluation(evaluation: Evaluation, *, over: str) -> str:
    """A verdict for people: what happened, where, how sure, and what to look at."""
    lines = [
        f"verdict: {evaluation.verdict.value}" + (f" (stage {evaluation.stage.value})" if evaluation.stage else "")
    ]
    if evaluation.message:
        lines.append(plain(evaluation.message.strip()))
    if evaluation.limit is not None:
        lines.append(f"limit: {evaluation.limit.value}")
    lines += _timing_lines(evaluation, over)
    lines += _correctness_lines(evaluation)
    lines += _resource_lines(evaluation)
    lines += _profile_lines(evaluation)
    lines += _deep_lines(evaluation)
    lines += _error_lines(evaluation)
    for finding in evaluation.findings:
        where = f" (line {finding.line})" if finding.line is not None else ""
        lines.append(f"finding: {plain(finding.code)}: {one_line(finding.message, 300)}{where}")
    if evaluation.problem_accepted_with_mark:
        lines.append("note: the problem was accepted although its audit refuses it; do not publish this figure")
    if evaluation.from_cache:
        lines.append("note: answered from an equal earlier evaluation; --fresh measures again")
    return "\n".join(lines)


def _timing_lines(evaluation: Evaluation, over: str) -> list[str]:
    timing = evaluation.timing
    if timing is None or timing.speedup is None:
        return []
    lines = [f"speedup: {ratio_text(timing.speedup)} over {over}"]
    if timing.confirmation is not None:
        lines.append(f"second timing: {ratio_text(timing.confirmation)}")
    if timing.candidate_us is not None and timing.baseline_us is not None:
        lines.append(f"time of a call: {timing.candidate_us:.2f} us, baseline {timing.baseline_us:.2f} us")
    if timing.floor_us:
        lines.append(f"memory floor: {timing.floor_us:.2f} us")
    if timing.trust is not None:
        lines.append(f"trust: {timing.trust.value}")
    if timing.stopped_at_bound:
        lines.append("timing ended early: the bound was out of reach")
    lines += [f"remark: {one_line(remark, 200)}" for remark in timing.remarks]
    return lines


def _profile_lines(evaluation: Evaluation) -> list[str]:
    profile = evaluation.profile
    if profile is None:
        return []
    lines = [f"held up by: {profile.bottleneck.value}"] if profile.bottleneck is not None else []
    roofline = profile.roofline
    if roofline is not None:
        told = f"{roofline.gb_per_s:.0f} GB/s, {roofline.bandwidth_share:.0%} of what was measured"
        if roofline.operations:
            told += f"; {roofline.tflop_per_s:.3g} TFLOP/s"
            told += f", {roofline.rate_share:.0%} of what was measured" if roofline.rate_share is not None else ""
        lines.append(f"beside the device: {told}")
    for launch in profile.launches[:_MOST_LAUNCHES]:
        share = launch.total_us / profile.traced_us if profile.traced_us else 0.0
        own = "" if launch.of_candidate else " (library)"
        lines.append(f"  {share:4.0%} {launch.total_us:10.2f} us  {launch.count}x {one_line(launch.kernel, 100)}{own}")
    if profile.counters:
        lines.append("by the device's counters (memory, compute, occupancy, L2 hits, registers):")
    for one in profile.counters[:_MOST_LAUNCHES]:
        shares = (one.memory_share, one.compute_share, one.occupancy, one.l2_hit_share)
        told = " ".join("   -" if share is None else f"{share:4.0%}" for share in shares)
        registers = "  -" if one.registers is None else f"{one.registers:3}"
        lines.append(f"  {told} {registers} {one.total_us:10.2f} us  {one.count}x {one_line(one.kernel, 80)}")
    return lines + [f"profile: {one_line(remark, 300)}" for remark in profile.remarks]


def _deep_lines(evaluation: Evaluation) -> list[str]:
    return [
        f"deep check: {plain(check.tool)}: {'' if check.ran else 'not done: '}{one_line(check.message, 300)}"
        for check in evaluation.deep_checks
    ]


def _resource_lines(evaluation: Evaluation) -> list[str]:
    """Registers, shared memory and spills of each kernel, by its compiler."""
    lines = []
    artefacts = evaluation.build.artefacts if evaluation.build is not None else ()
    for kernel in [kernel for artefact in artefacts for kernel in artefact.kernels][:_MOST_LAUNCHES]:
        known = {
            "registers": kernel.registers,
            "bytes shared": kernel.shared_memory_bytes,
            "bytes spilled": kernel.spill_bytes,
        }
        told = ", ".join(f"{value} {unit}" for unit, value in known.items() if value is not None)
        lines.append(f"kernel: {one_line(kernel.kernel, 100)}: {told or 'nothing is known of it'}")
    return lines


def _correctness_lines(evaluation: Evaluation) -> list[str]:
    correctness = evaluation.correctness
    if correctness is None:
        return []
    lines = [
        f"checked: {correctness.trials} trials, {correctness.elements_compared} elements, "
        f"{correctness.timed_calls_compared} timed calls"
    ]
    if evaluation.checked_on is not None:
        lines[0] += f", on the {evaluation.checked_on.value}"
    mismatch = correctness.mismatch
    if mismatch is not None:
        place = ", ".join(map(str, mismatch.index))
        lines.append(
            f"worst element: output {mismatch.output_index} [{place}] is {mismatch.got!r}, expected {mismatch.expected!r} "
            f"(error {mismatch.error:.3g}, budget {mismatch.budget:.3g}; {mismatch.elements_wrong} of {mismatch.elements} wrong)"
        )
    return lines


def _error_lines(evaluation: Evaluation) -> list[str]:
    lines: list[str] = []
    if evaluation.error is not None:
        where = f" at line {evaluation.error.line}" if evaluation.error.line is not None else ""
        lines.append(f"raised: {plain(evaluation.error.type)}: {one_line(evaluation.error.message, 400)}{where}")
        lines += _excerpt(evaluation.error.traceback, last=True)
    build = evaluation.build
    if build is not None and evaluation.verdict is Verdict.COMPILE_ERROR:
        for diagnostic in build.diagnostics[:5]:
            place = ":".join(
                str(part) for part in (diagnostic.file, diagnostic.line, diagnostic.column) if part not in ("", None)
            )
            lines.append(f"{plain(place)}: {plain(diagnostic.severity)}: {one_line(diagnostic.message, 300)}")
            lines += _excerpt(diagnostic.excerpt)
        if not build.diagnostics and build.log is not None:
            lines += _excerpt(build.log.tail or build.log.head, last=True)
    ending = evaluation.sandbox_ending
    if ending is not None and ending.kind is not None:
        detail = f": {one_line(ending.detail, 300)}" if ending.detail else ""
        lines.append(f"sandbox: {ending.kind.value}{detail}")
    if evaluation.output is not None and evaluation.verdict is not Verdict.PASSED:
        printed = _excerpt(evaluation.output.tail or evaluation.output.head, last=True)
        if printed:
            lines += [f"printed ({evaluation.output.total_bytes} bytes):", *printed]
    return lines


def _excerpt(text: str, *, last: bool = False) -> list[str]:
    lines = [line for line in plain(text).splitlines() if line.strip()]
    cut = lines[-_EXCERPT_LINES:] if last else lines[:_EXCERPT_LINES]
    return [f"    {line[:200]}" for line in cut]
