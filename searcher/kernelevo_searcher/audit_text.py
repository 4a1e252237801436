"""An audit's report for people: what a problem is made of, what a candidate is allowed, and what was found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelevo_searcher.wording import one_line, plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelevo_api.types import ErrorBudget, Finding, ProblemReport, TensorInfo

__all__ = ["describe_refusal", "describe_report"]

_MOST_TENSORS = 24
"""Tensors of a kind that are named one by one."""
_SOURCES = {
    "floor": "the dtype's floor",
    "honest": "4 times the honest error",
    "problem": "the problem's own tolerance",
}


def describe_report(report: ProblemReport) -> str:
    """A report as text of several lines."""
    refused = report.accepted_with_mark
    lines = [f"{plain(report.name)}: {'refused by its audit, and taken nevertheless' if refused else 'taken'}"]
    lines += _policy_lines(report)
    for what, tensors in (("inputs", report.inputs), ("outputs", report.outputs), ("weights", report.weights)):
        lines += _tensor_lines(what, tensors)
    if report.mutates_inputs:
        lines.append("the reference writes to its inputs: they count as outputs too")
    lines += _budget_lines(report)
    lines += _time_lines(report)
    lines += _finding_lines(report.findings)
    if report.seeds:
        lines.append(f"candidates without a model: {len(report.seeds)}")
    return "\n".join(lines)


def describe_refusal(name: str, reasons: Sequence[str]) -> str:
    """Why a problem is not taken."""
    return "\n".join([f"{plain(name)}: not taken", *(f"  {one_line(reason, 600)}" for reason in reasons)])


def _policy_lines(report: ProblemReport) -> list[str]:
    policy = report.policy
    if policy is None:
        return []
    told = [
        policy.dtype,
        f"{policy.math} products" if policy.math else "",
        policy.timing.value if policy.timing else "",
    ]
    lines = [f"policy: {', '.join(one for one in told if one)}"]
    if policy.languages:
        lines.append(f"languages: {', '.join(language.value for language in policy.languages)}")
    lines += [f"further shape: {one_line(shape, 200)}" for shape in policy.shapes]
    if policy.dynamic_weights:
        lines.append("weights may change between calls: nothing of them may be packed ahead")
    return lines


def _tensor_lines(what: str, tensors: Sequence[TensorInfo]) -> list[str]:
    if not tensors:
        return []
    lines = [f"{what}: {len(tensors)}, {_size(sum(tensor.bytes for tensor in tensors))}"]
    for number, tensor in enumerate(tensors[:_MOST_TENSORS]):
        shape = "x".join(map(str, tensor.shape)) or "a number"
        lines.append(
            f"  {one_line(tensor.name, 60) or number:<24} {shape:<24} {tensor.dtype:<10} {_size(tensor.bytes):>10}"
        )
    if len(tensors) > _MOST_TENSORS:
        lines.append(f"  and {len(tensors) - _MOST_TENSORS} more")
    return lines


def _budget_lines(report: ProblemReport) -> list[str]:
    if not report.budgets:
        return []
    lines = [
        f"what is right: computed in {plain(report.expected_dtype) or 'the same dtype'}; a candidate may be off by",
        "  output  inputs                  each element                  as a whole   the reference is off by",
    ]
    return lines + [_budget_line(budget) for budget in report.budgets]


def _budget_line(budget: ErrorBudget) -> str:
    element = f"{budget.atol:.1e} + {budget.rtol:.1e} x its value"
    source = _SOURCES.get(budget.source, plain(budget.source))
    return (
        f"  {budget.output_index:<7} {one_line(budget.input_class, 22):<23} {element:<29} {budget.norm_rtol:<12.1e} "
        f"{budget.honest_norm_error:.1e}  ({source})"
    )


def _time_lines(report: ProblemReport) -> list[str]:
    lines = []
    for baseline in report.baselines:
        kind = baseline.kind.value.replace("_", ".") if baseline.kind is not None else "baseline"
        lines.append(f"{kind}: {baseline.median_us:.1f} us a call, {baseline.low_us:.1f} to {baseline.high_us:.1f}")
    if report.compulsory_bytes:
        floor = f"; no call is believed below {report.floor_us:.2f} us" if report.floor_us is not None else ""
        lines.append(f"must be read and written once: {_size(report.compulsory_bytes)}{floor}")
    return lines


def _finding_lines(findings: Sequence[Finding]) -> list[str]:
    if not findings:
        return ["findings: none"]
    ordered = sorted(findings, key=lambda finding: not finding.refuses)
    return ["findings:"] + [
        f"  {plain(finding.code)}{' (refuses)' if finding.refuses else ''}: {one_line(finding.message, 400)}"
        + (f" (line {finding.line})" if finding.line is not None else "")
        for finding in ordered
    ]


def _size(count: int) -> str:
    """Bytes, e.g. "1.5 MiB"."""
    value, units = float(count), ["B", "KiB", "MiB", "GiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:.1f} {units[0]}"
