"""Comparing outputs with what they should be.

Element-wise |a - e| <= atol + rtol * |e|, and a bound on |a - e|_2 / |e|_2, of the whole and of every part (`parts.py`): an
absolute tolerance alone lets zeros pass, and a norm of the whole lets whatever is small beside the rest be zero. Both come from
the larger of the dtype's published floor and `HONEST_FACTOR` times the honest error of the reference at the problem's dtype.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from kernelevo_api.types import ErrorBudget, Mismatch
from kernelevo_evaluator.referee.parts import NEGLIGIBLE, worst_parts

HONEST_FACTOR = 4.0
"""A candidate may be this many times as far off as the reference at the problem's own dtype."""
HONEST_PART_FACTOR = 16.0
"""The same for the worst part of an output. More than for the whole: the error of a part that almost cancels has no typical
value, and two honest ones differ by more."""
PLAIN_SHARE = 1 - 1 / HONEST_FACTOR
"""Share of a budget within which an output that agrees with the reference at the problem's own dtype is right beyond doubt."""

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
    got: torch.Tensor,
    expected: torch.Tensor,
    budget: ErrorBudget,
    output_index: int,
    input_class: str,
    own: torch.Tensor | None = None,
) -> Comparison:
    """Compare one output, all of the same shape; integers and booleans must be equal.

    `got` at the problem's dtype, `expected` at float64 (or at its own dtype where it is not floating). `own`: what the reference
    answers at the problem's dtype: where it is far off in some part, `HONEST_PART_FACTOR` times as much is allowed in its like.
    """
    elements = expected.numel()
    if elements == 0:
        return Comparison(ok=True, elements=0, norm_error=0.0)
    if got.dtype.is_complex:
        got, expected = torch.view_as_real(got), torch.view_as_real(expected.to(torch.complex128))
        own = torch.view_as_real(own) if own is not None else None
        elements = expected.numel()
    if not got.dtype.is_floating_point:
        return _exactly(got, expected, budget, output_index, input_class)
    e = expected.to(torch.float64)
    size, error = e.abs(), (got.to(torch.float64) - e).abs_()
    allowed = (size * budget.rtol).add_(budget.atol)
    norm_error = _ratio(_norm(error), _norm(size))
    excess = error - allowed
    whole = Comparison(ok=True, elements=elements, norm_error=norm_error if math.isfinite(norm_error) else math.inf)
    mismatch = Mismatch(
        input_class=input_class,
        output_index=output_index,
        elements=elements,
        norm_error=norm_error,
        norm_budget=budget.norm_rtol,
    )
    worst = float(excess.max())  # of a NaN, NaN
    if not worst <= 0.0:
        excess = torch.nan_to_num(excess, nan=math.inf, posinf=math.inf)
        mismatch = replace(mismatch, elements_wrong=int((excess > 0.0).sum()))
        at = int(torch.argmax(excess))
    elif not norm_error <= budget.norm_rtol:
        at = int(torch.argmax(error))
    else:
        found = part_beyond(worst_parts(error, size), budget, local_errors(own, e) if own is not None else {})
        if found is None:
            return whole
        norm_error, limit = found
        mismatch = replace(mismatch, norm_error=norm_error, norm_budget=limit)
        at = int(torch.argmax(error / (size + NEGLIGIBLE * size.mean())))
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(at), error.shape))
    return replace(
        whole,
        ok=False,
        mismatch=replace(
            mismatch,
            index=index,
            got=float(got[index]),
            expected=float(expected[index]),
            error=float(error[index]),
            budget=float(allowed[index]),
            norm_error=norm_error if math.isfinite(norm_error) else math.inf,
        ),
    )


def plainly_right(got: torch.Tensor, own: torch.Tensor, budget: ErrorBudget, honest: dict[str, float]) -> bool:
    """Whether an output is within `PLAIN_SHARE` of its budget of what the reference answers at the problem's own dtype.

    Quick, since nothing is widened to double precision. True means right, as the reference itself is off by `1 / HONEST_FACTOR`
    of the budget at most; False means that `compare` has to say. `honest`: the reference's own errors in parts, as last seen.
    """
    if got.dtype.is_complex:
        got, own = torch.view_as_real(got), torch.view_as_real(own)
    if not got.dtype.is_floating_point:
        return bool(torch.equal(got.contiguous().view(torch.uint8), own.contiguous().view(torch.uint8)))
    if got.numel() == 0:
        return True
    dtype = torch.promote_types(got.dtype, torch.float32)
    size, error = own.to(dtype).abs(), (got.to(dtype) - own.to(dtype)).abs_()
    if not float((error - (size * budget.rtol).add_(budget.atol).mul_(PLAIN_SHARE)).max()) <= 0.0:
        return False
    if not _ratio(_norm(error), _norm(size)) <= PLAIN_SHARE * budget.norm_rtol:
        return False
    return part_beyond(worst_parts(error, size), budget, honest, PLAIN_SHARE) is None


def local_errors(own: torch.Tensor, expected: torch.Tensor) -> dict[str, float]:
    """Norm-wise error of the reference at its own dtype against the higher precision, in the worst part of each family."""
    wide = expected.to(torch.float64)
    return worst_parts((own.to(torch.float64) - wide).abs_(), wide.abs())


def part_beyond(
    parts: dict[str, float], budget: ErrorBudget, honest: dict[str, float], share: float = 1.0
) -> tuple[float, float] | None:
    """Error and limit of a part that is beyond `share` of its limit; none where there is no such part.

    `honest`: the reference's own errors, family by family.
    """
    for family, error in parts.items():
        limit = max(budget.norm_rtol, HONEST_PART_FACTOR * honest.get(family, 0.0))
        if not error <= share * limit:
            return error, limit
    return None


def _exactly(
    got: torch.Tensor, expected: torch.Tensor, budget: ErrorBudget, output_index: int, input_class: str
) -> Comparison:
    elements = expected.numel()
    # Bytes, not values: a bool that is neither 0 nor 1 is no bool.
    wrong = got.contiguous().view(torch.uint8) != expected.to(got.dtype).contiguous().view(torch.uint8)
    wrong = wrong.reshape(elements, -1).any(dim=1).reshape(expected.shape)
    error = (got.to(torch.float64) - expected.to(torch.float64)).abs()
    norm_error = _ratio(_norm(error), _norm(expected.to(torch.float64)))
    count = int(wrong.sum())
    if count == 0:
        return Comparison(ok=True, elements=elements, norm_error=norm_error)
    at = int(torch.argmax(torch.where(wrong, error, -math.inf)))
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(at), error.shape))
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
            budget=0.0,
            norm_error=norm_error,
            norm_budget=budget.norm_rtol,
        ),
    )


def _norm(tensor: torch.Tensor) -> float:
    # In double precision whatever the dtype: a square may leave the range of a narrower one.
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64))


def _ratio(error: float, size: float) -> float:
    if error == 0.0:
        return 0.0
    return error / size if size > 0.0 else math.inf


def describe(mismatch: Mismatch, honest_norm_error: float | None = None) -> str:
    """One line for people. `honest_norm_error`: of the reference at the problem's own dtype, whose multiple is told."""
    where = f"output {mismatch.output_index}"
    if mismatch.elements_wrong == 0:
        ratio = ""
        if honest_norm_error and mismatch.norm_error:
            ratio = f", {mismatch.norm_error / honest_norm_error:.3g} times the honest error of {honest_norm_error:.2e}"
        return (
            f"{where} is off by its norm, as a whole or in a part: |a-e|/|e| is {mismatch.norm_error:.2e}{ratio}; "
            f"{mismatch.norm_budget:.2e} is allowed (inputs: {mismatch.input_class}); is a lower precision used inside?"
        )
    return (
        f"{where}: {mismatch.elements_wrong} of {mismatch.elements} elements are wrong (inputs: {mismatch.input_class}); "
        f"the worst at {list(mismatch.index)}: got {mismatch.got:.6g}, expected {mismatch.expected:.6g}, "
        f"error {mismatch.error:.2e}, allowed {mismatch.budget:.2e}"
    )
