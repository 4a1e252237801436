"""Whether a kernel's outputs are those of the original, at the place where it is called. Imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kernelevo_api.types import ErrorBudget

__all__ = ["Allowed", "allowed_by", "disagreement"]

_SLACK = 2.0
"""Factor on the audit's budget: it bounds the distance to a more precise answer, and the original has an error of its own."""
_FLOORS: dict[Any, tuple[float, float, float]] = {
    torch.float64: (1e-7, 1e-7, 1e-12),
    torch.float32: (1.3e-6, 1e-5, 8e-6),
    torch.float16: (1e-3, 1e-5, 2e-3),
    torch.bfloat16: (1.6e-2, 1e-5, 1.6e-2),
}
"""Relative and absolute tolerance, and that of the norm, where no budget is known; the first two as `torch.testing` has them."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """How far an output may be from the original's: |k - o| <= atol + rtol |o| everywhere, and |k - o|_2 <= norm_rtol |o|_2."""

    rtol: float
    atol: float
    norm_rtol: float


def allowed_by(budgets: Iterable[ErrorBudget], rtol: float | None, atol: float | None) -> dict[int, Allowed]:
    """By the output's place: what the audit allows there on the problem's own inputs, or what the user says."""
    found: dict[int, Allowed] = {}
    for one in budgets:
        if one.input_class == "declared" or one.output_index not in found:
            found[one.output_index] = Allowed(
                _SLACK * one.rtol if rtol is None else rtol,
                _SLACK * one.atol if atol is None else atol,
                _SLACK * one.norm_rtol if rtol is None else rtol,
            )
    return found


def disagreement(original: Any, kernel: Any, allowed: Mapping[int, Allowed]) -> str:
    """Why the kernel's outputs are not the original's; empty where they are.

    Args:
        original, kernel: tensors, or lists, tuples and dicts of tensors and plain values.
    """
    expected, arranged = _pytree.tree_flatten(original)
    got, found = _pytree.tree_flatten(kernel)
    if arranged != found:
        return f"its outputs are arranged as {found}, not as {arranged}"
    for index, (e, g) in enumerate(zip(expected, got, strict=True)):
        why = _differ(e, g, allowed.get(index))
        if why:
            return f"output {index}: {why}"
    return ""


def _differ(expected: Any, got: Any, allowed: Allowed | None) -> str:
    if not isinstance(expected, torch.Tensor) or not isinstance(got, torch.Tensor):
        same = type(expected) is type(got) and expected == got
        return "" if same else f"{got!r} in place of {expected!r}"
    for name in ("shape", "dtype", "device"):
        if getattr(expected, name) != getattr(got, name):
            return f"its {name} is {getattr(got, name)}, not {getattr(expected, name)}"
    if not expected.dtype.is_floating_point and not expected.dtype.is_complex:
        wrong = int((expected != got).sum())
        return f"{wrong} of {expected.numel()} elements differ" if wrong else ""
    if not expected.numel():
        return ""
    allowed = allowed or _floor(expected.dtype)
    wide = torch.complex128 if expected.dtype.is_complex else torch.float64
    e, g = expected.detach().to(wide), got.detach().to(wide)
    finite = torch.isfinite(e)
    # What is not finite must be the same: an infinity of the other sign, or a number in place of NaN, is another answer.
    same = torch.where(finite, torch.isfinite(g), (e == g) | (torch.isnan(e) & torch.isnan(g)))
    error = torch.where(finite & same, (e - g).abs(), 0.0)
    size = torch.where(finite, e.abs(), 0.0)
    wrong = int((~same | (error > allowed.atol + allowed.rtol * size)).sum())
    if wrong:
        return f"{wrong} of {e.numel()} elements are wrong, the worst by {float(error.max()):.3g}"
    # A sum of squares overflows for what is large; ratios of norms do not care for a common factor.
    scale = max(float(size.max()), 1e-300)
    off, whole = float((error / scale).norm()), float((size / scale).norm())
    if off > allowed.norm_rtol * whole and float(error.max()) > allowed.atol:
        return f"it is off by {off / whole if whole else off:.3g} of its norm, {allowed.norm_rtol:.3g} is allowed"
    return ""


def _floor(dtype: Any) -> Allowed:
    parts = {torch.complex64: torch.float32, torch.complex128: torch.float64}
    rtol, atol, norm = _FLOORS.get(parts.get(dtype, dtype), (1e-2, 1e-2, 1e-2))
    return Allowed(_SLACK * rtol, _SLACK * atol, _SLACK * norm)
