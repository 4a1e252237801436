"""Comparing outputs with what they should be.

Element-wise |a - e| <= atol + rtol * |e|, and a bound on |a - e|_2 / |e|_2: an absolute tolerance alone lets zeros pass.
Both come from the larger of the dtype's published floor and `HONEST_FACTOR` times the honest error of the reference at the
problem's dtype.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from kernelevo_api.types import ErrorBudget, Mismatch

HONEST_FACTOR = 4.0
"""A candidate may be this many times as far off as the reference at the problem's own dtype."""

FLOORS: dict[torch.dtype, tuple[float, float]] = {
    torch.float64: (1e-7, 1e-7),
    torch.float32: (1.3e-6, 1e-5),
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
}
"""(rtol, atol) by dtype, as published with torch.testing.assert_close."""

NORM_FLOORS: dict[torch.dtype, float] = {
    torch.float64: 1e-12,
    torch.float32: 8e-6,
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
}
"""Norm-wise floor: a few tens of the dtype's epsilon for float64 and float32 (another order of summation, another exp), two
for the half types; TF32 inside a float32 problem is near 3e-4 and stays out."""


_PARTS = {torch.complex64: torch.float32, torch.complex128: torch.float64}
"""Complex numbers are compared by their parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One output against its expectation. `norm_error` is |a - e|_2 / |e|_2."""

    ok: bool
    elements: int
    norm_error: float
    mismatch: Mismatch | None = None


def honest_error(own: torch.Tensor, expected: torch.Tensor) -> tuple[float, float]:
    """Largest absolute and the norm-wise error of the reference at its own dtype against the higher precision."""
    difference = (own.to(torch.float64) - expected.to(torch.float64)).abs()
    if difference.numel() == 0:
        return 0.0, 0.0
    return float(difference.max()), _ratio(float(difference.norm()), float(expected.to(torch.float64).norm()))


def budget_from(
    input_class: str,
    output_index: int,
    dtype: torch.dtype,
    largest: float,
    norm: float,
    rtol: float | None,
    atol: float | None,
) -> ErrorBudget:
    """The budget of one output for one input class. `rtol` and `atol` are the problem's own, which may widen it."""
    dtype = _PARTS.get(dtype, dtype)
    floor_rtol, floor_atol = FLOORS.get(dtype, (0.0, 0.0))
    floor_norm = NORM_FLOORS.get(dtype, 0.0)
    own_norm = HONEST_FACTOR * norm
    source = "honest" if own_norm > floor_norm else "floor"
    budget_rtol, budget_atol = floor_rtol, max(floor_atol, HONEST_FACTOR * largest)
    budget_norm = max(floor_norm, own_norm)
    if (rtol or 0.0) > budget_rtol or (atol or 0.0) > budget_atol:
        source = "problem"
        # The norm follows a relative tolerance only: an absolute one says nothing about outputs of another scale.
        budget_norm = max(budget_norm, rtol or 0.0)
        budget_rtol, budget_atol = max(budget_rtol, rtol or 0.0), max(budget_atol, atol or 0.0)
    return ErrorBudget(
        input_class=input_class,
        rtol=budget_rtol,
        atol=budget_atol,
        norm_rtol=budget_norm,
        honest_norm_error=norm,
        source=source,
        output_index=output_index,
    )


def compare(
    got: torch.Tensor, expected: torch.Tensor, budget: ErrorBudget, output_index: int, input_class: str
) -> Comparison:
    """Compare one output, both of the same shape; integers and booleans must be equal.

    `got` at the problem's dtype, `expected` at float64 (or at its own dtype where it is not floating).
    """
    elements = expected.numel()
    if elements == 0:
        return Comparison(ok=True, elements=0, norm_error=0.0)
    if got.dtype.is_complex:
        got, expected = torch.view_as_real(got), torch.view_as_real(expected.to(torch.complex128))
        elements = expected.numel()
    if not got.dtype.is_floating_point:
        # Bytes, not values: a bool that is neither 0 nor 1 is no bool.
        wrong = got.contiguous().view(torch.uint8) != expected.to(got.dtype).contiguous().view(torch.uint8)
        wrong = wrong.reshape(elements, -1).any(dim=1).reshape(expected.shape)
        error = (got.to(torch.float64) - expected.to(torch.float64)).abs()
        allowed = torch.zeros_like(error)
        norm_error = _ratio(float(error.norm()), float(expected.to(torch.float64).norm()))
        within_norm = True
    else:
        a, e = got.to(torch.float64), expected.to(torch.float64)
        error = (a - e).abs()
        allowed = budget.rtol * e.abs() + budget.atol
        wrong = ~(error <= allowed)  # a NaN compares false, and so is wrong
        finite = torch.isfinite(a)
        norm_error = _ratio(float(error.norm()), float(e.norm())) if bool(finite.all()) else math.inf
        within_norm = norm_error <= budget.norm_rtol
    count = int(wrong.sum())
    if count == 0 and within_norm:
        return Comparison(ok=True, elements=elements, norm_error=norm_error)
    excess = torch.nan_to_num(error - allowed, nan=math.inf, posinf=math.inf)
    worst = int(torch.argmax(torch.where(wrong, excess, -math.inf) if count else error))
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), error.shape))
    return Comparison(
        ok=False,
        elements=elements,
        norm_error=norm_error,
        mismatch=Mismatch(
            input_class=input_class,
            output_index=output_index,
            elements_wrong=count,
            elements=elements,
            index=index,
            got=float(got[index]),
            expected=float(expected[index]),
            error=float(error[index]),
            budget=float(allowed[index]),
            norm_error=norm_error,
            norm_budget=budget.norm_rtol,
        ),
    )


def _ratio(error: float, size: float) -> float:
    if error == 0.0:
        return 0.0
    return error / size if size > 0.0 else math.inf


def describe(mismatch: Mismatch) -> str:
    """One line for people."""
    where = f"output {mismatch.output_index}"
    if mismatch.elements_wrong == 0:
        return (
            f"{where} is off as a whole: |a-e|/|e| is {mismatch.norm_error:.2e}, {mismatch.norm_budget:.2e} is allowed "
            f"(inputs: {mismatch.input_class}); is a lower precision used inside?"
        )
    return (
        f"{where}: {mismatch.elements_wrong} of {mismatch.elements} elements are wrong (inputs: {mismatch.input_class}); "
        f"the worst at {list(mismatch.index)}: got {mismatch.got:.6g}, expected {mismatch.expected:.6g}, "
        f"error {mismatch.error:.2e}, allowed {mismatch.budget:.2e}"
    )
