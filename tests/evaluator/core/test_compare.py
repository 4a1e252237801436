"""Budgets: what honest arithmetic may differ by, and what nothing may."""

from __future__ import annotations

import math

import pytest
import torch

from kernelevo_evaluator.referee.compare import (
    budget_from,
    compare,
    describe,
    honest_error,
    local_errors,
    plainly_right,
)

FP32 = torch.float32


def budget(dtype=FP32, largest=0.0, norm=0.0, rtol=None, atol=None):
    return budget_from("declared", 0, dtype, largest, norm, rtol, atol)


def against(got, expected, allowed=None):
    return compare(got, expected, allowed or budget(got.dtype), 0, "declared")


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(1)


def matmul():
    a, b = torch.randn(64, 512), torch.randn(512, 64)
    wide = a.double() @ b.double()
    own = a @ b
    return a, b, own, wide, budget(FP32, *honest_error(own, wide))


def test_honest_reorderings_pass():
    a, b, own, wide, allowed = matmul()
    chunks = sum(a[:, i : i + 64] @ b[i : i + 64] for i in range(0, 512, 64))
    backwards = a.flip(1) @ b.flip(0)
    for got in (own, chunks, backwards, (b.t() @ a.t()).t()):
        assert against(got, wide, allowed).ok
    x = torch.randn(128, 1000)
    softmax = (x - x.logsumexp(1, keepdim=True)).exp()
    assert against(softmax, x.double().softmax(1)).ok


def round_to(tensor, bits):
    """Keep this many bits of the mantissa: 10 is TF32's, 7 bfloat16's."""
    mask = ~((1 << (23 - bits)) - 1)
    whole = tensor.view(torch.int32) + (1 << (22 - bits))
    return (whole & mask).view(FP32)


@pytest.mark.parametrize("bits", [10, 7])
def test_lower_precision_is_refused(bits):
    a, b, _, wide, allowed = matmul()
    comparison = against(round_to(a, bits) @ round_to(b, bits), wide, allowed)
    assert not comparison.ok
    assert "lower precision" in describe(comparison.mismatch) or comparison.mismatch.elements_wrong


def test_half_inputs_are_refused():
    a, b, _, wide, allowed = matmul()
    assert not against((a.half() @ b.half()).float(), wide, allowed).ok


def test_zeros_do_not_pass_where_outputs_are_tiny():
    expected = torch.rand(100, dtype=torch.float64) * 1e-7
    allowed = budget()
    assert float(expected.max()) < allowed.atol
    comparison = against(torch.zeros(100), expected, allowed)
    assert not comparison.ok
    assert comparison.mismatch.elements_wrong == 0
    assert comparison.mismatch.norm_error == pytest.approx(1.0)


def test_zeros_are_right_where_zeros_are_expected():
    assert against(torch.zeros(5), torch.zeros(5, dtype=torch.float64)).ok
    assert not against(torch.full((5,), 1e-9), torch.zeros(5, dtype=torch.float64)).ok


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_not_finite_is_a_mismatch(value, dtype):
    expected = torch.ones(4, 4, dtype=torch.float64)
    got = expected.to(dtype)
    assert against(got, expected).ok
    got[1, 2] = value
    comparison = against(got, expected)
    assert not comparison.ok
    assert comparison.mismatch.elements_wrong == 1
    assert tuple(comparison.mismatch.index) == (1, 2)
    describe(comparison.mismatch)


def test_not_finite_on_both_sides_is_no_match():
    for value in (math.nan, math.inf):
        assert not against(torch.tensor([value]), torch.tensor([value], dtype=torch.float64)).ok


def test_poison_is_never_right():
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        size = torch.tensor([], dtype=dtype).element_size()
        poison = torch.full((8 * size,), 0xFF, dtype=torch.uint8).view(dtype)
        assert not against(poison, torch.zeros(8, dtype=torch.float64)).ok
    bools = torch.full((8,), 0xFF, dtype=torch.uint8).view(torch.bool)
    assert not against(bools, torch.ones(8, dtype=torch.bool)).ok


def test_bytes_that_are_no_bool():
    expected = torch.tensor([True, True, False])
    assert against(expected.clone(), expected).ok
    comparison = against(torch.tensor([1, 2, 0], dtype=torch.uint8).view(torch.bool), expected)
    assert not comparison.ok
    assert comparison.mismatch.elements_wrong == 1


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_integers_are_equal_or_wrong(dtype):
    expected = torch.arange(24).reshape(2, 3, 4).to(dtype)
    assert against(expected.clone(), expected).ok
    got = expected.clone()
    got[1, 2, 3] += 1
    comparison = against(got, expected)
    assert not comparison.ok
    assert tuple(comparison.mismatch.index) == (1, 2, 3)


def test_large_integers_are_not_compared_as_floats():
    expected = torch.tensor([2**62 + 1])
    assert not against(expected - 1, expected).ok


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex(dtype):
    expected = torch.randn(3, 4, dtype=torch.complex128)
    assert against(expected.to(dtype), expected).ok
    got = expected.to(dtype, copy=True)
    got[2, 1] = got[2, 1].conj()
    comparison = against(got, expected)
    assert not comparison.ok
    assert tuple(comparison.mismatch.index)[:2] == (2, 1)
    assert not against(torch.zeros_like(got), expected).ok


def test_scalars_and_nothing():
    assert against(torch.tensor(2.0), torch.tensor(2.0, dtype=torch.float64)).ok
    comparison = against(torch.tensor(2.1), torch.tensor(2.0, dtype=torch.float64))
    assert not comparison.ok
    assert tuple(comparison.mismatch.index) == ()
    nothing = against(torch.zeros(0, 3), torch.zeros(0, 3, dtype=torch.float64))
    assert nothing.ok
    assert nothing.elements == 0
    assert honest_error(torch.zeros(0), torch.zeros(0)) == (0.0, 0.0)


def test_strides_of_the_two_may_differ():
    expected = torch.randn(5, 7, dtype=torch.float64)
    assert against(expected.t().contiguous().t().float(), expected).ok
    ints = torch.arange(35).reshape(5, 7)
    assert against(ints.t().contiguous().t(), ints).ok


@pytest.mark.parametrize(("dtype", "norm"), [(torch.float32, 8e-6), (torch.bfloat16, 1.6e-2)])
def test_budget_is_the_larger_of_floor_and_honest_error(dtype, norm):
    assert budget(dtype).norm_rtol == norm
    assert budget(dtype).source == "floor"
    wider = budget(dtype, largest=3.0, norm=1.0)
    assert wider.norm_rtol == 4.0
    assert wider.atol == 12.0
    assert wider.source == "honest"


def test_a_problem_may_widen_and_never_narrow():
    assert budget(rtol=1e-9, atol=1e-12) == budget()
    wide = budget(rtol=1e-2)
    assert wide.source == "problem"
    assert wide.rtol == wide.norm_rtol == 1e-2
    absolute = budget(atol=0.5)
    assert absolute.atol == 0.5
    assert absolute.norm_rtol == budget().norm_rtol


def test_small_parts_of_an_output_count():
    """One column of large values must not be an excuse to leave the others out."""
    torch.manual_seed(0)
    weight = torch.randn(256, 64)
    weight[:, 0] *= 1e8
    a = torch.randn(128, 256)
    wide, own = a.double() @ weight.double(), a @ weight
    allowed = budget(FP32, *honest_error(own, wide))
    lazy = torch.zeros_like(own)
    lazy[:, 0] = own[:, 0]
    for seen in (None, own):
        assert not compare(lazy, wide, allowed, 0, "declared", seen).ok
    assert compare(own, wide, allowed, 0, "declared", own).ok
    assert not plainly_right(lazy, own, allowed, local_errors(own, wide))


def scaled(*shape, dim, scale):
    """Normal numbers, those of the first index along a dimension larger."""
    made = torch.randn(shape)
    made.select(dim, 0).mul_(scale)
    return made


@pytest.mark.parametrize("scale", [1e4, 1e6])
@pytest.mark.parametrize(("shape", "dim"), [((64, 48), 0), ((64, 48), 1), ((8, 6, 5, 32), 1), ((4, 200), 0)])
def test_zeros_beside_large_values(shape, dim, scale):
    """Whatever dimension the large values lie along: what is small beside them is seen."""
    expected = scaled(*shape, dim=dim, scale=scale)
    allowed = budget(largest=float(expected.abs().max()) * 6e-8, norm=6e-8)
    got = expected.clone()
    got.select(dim, 1).zero_()
    comparison = against(got, expected.double(), allowed)
    assert not comparison.ok
    assert not plainly_right(got, expected, allowed, {})
    assert against(expected, expected.double(), allowed).ok
    assert plainly_right(expected, expected, allowed, {})


def test_a_tile_at_the_end_counts():
    expected = torch.ones(1000)
    expected[0] = 1e7
    allowed = budget(largest=100.0)
    got = expected.clone()
    got[-20:] = 0.0
    assert not against(got, expected.double(), allowed).ok
    assert not plainly_right(got, expected, allowed, {})


HONEST = {
    "sum": (
        lambda x: x.sum(1),
        [lambda x: x.flip(1).sum(1), lambda x: x.cumsum(1)[:, -1], lambda x: x.view(len(x), 8, -1).sum(1).sum(1)],
    ),
    "column sum": (lambda x: x.sum(0), [lambda x: x.flip(0).sum(0), lambda x: x.t().contiguous().sum(1)]),
    "softmax": (
        lambda x: x.softmax(1),
        [
            lambda x: (x - x.logsumexp(1, keepdim=True)).exp(),
            lambda x: x.exp() / x.exp().sum(1, keepdim=True),
            lambda x: torch.exp2(x * 1.442695).div_(torch.exp2(x * 1.442695).sum(1, keepdim=True)),
        ],
    ),
    "matmul": (
        lambda x: x @ x.t(),
        [
            lambda x: sum(part @ part.t() for part in x.split(16, dim=1)),
            lambda x: x.flip(1) @ x.flip(1).t(),
            lambda x: (x.unsqueeze(1) * x).sum(-1),
        ],
    ),
    "centred": (
        lambda x: x - x.mean(1, keepdim=True),
        [lambda x: x - x.flip(1).sum(1, keepdim=True) / x.shape[1], lambda x: x.sub(x.cumsum(1)[:, -1:] / x.shape[1])],
    ),
    "large column": (
        lambda x: x @ scaled_weight(x),
        [lambda x: sum(a @ b for a, b in zip(x.split(16, dim=1), scaled_weight(x).split(16), strict=True))],
    ),
}


def scaled_weight(x):
    """A weight that depends on nothing but the shape, with one large column."""
    weight = torch.cos(torch.arange(x.shape[1] * 48, dtype=torch.float64)).view(x.shape[1], 48)
    weight[:, 3] *= 1e6
    return weight.to(x.dtype)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("shape", [(96, 128), (40, 1024)])
@pytest.mark.parametrize("name", HONEST)
def test_honest_rounding_passes_in_every_part(name, shape, seed):
    """Other orders of summation and other forms of the same formula, against budgets made as the audit makes them."""
    torch.manual_seed(1000 + seed)
    reference, variants = HONEST[name]
    contents = [torch.randn(shape) for _ in range(4)]
    pairs = [honest_error(reference(x), reference(x.double())) for x in contents[1:]]
    allowed = budget(FP32, max(largest for largest, _ in pairs), max(norm for _, norm in pairs))
    x = contents[0]
    own, wide = reference(x), reference(x.double())
    seen = local_errors(reference(contents[1]), reference(contents[1].double()))
    for variant in variants:
        comparison = compare(variant(x), wide, allowed, 0, "declared", own)
        assert comparison.ok, describe(comparison.mismatch)
        # What the quick look doubts is compared; what it takes must be right.
        if plainly_right(variant(x), own, allowed, seen):
            assert compare(variant(x), wide, allowed, 0, "declared", own).ok
    assert plainly_right(own, own, allowed, seen)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64])
def test_the_quick_look_sees_what_is_not_there(dtype):
    expected = torch.randn(40, 64).to(dtype)
    allowed = budget(dtype)
    assert plainly_right(expected.clone(), expected, allowed, {})
    for value in (math.nan, math.inf, 0.0, 3.0):
        got = expected.clone()
        got[7, 9] = value
        assert not plainly_right(got, expected, allowed, {}), value
    assert plainly_right(expected[:0], expected[:0], allowed, {})
    tiny = (torch.rand(40, 64, dtype=torch.float64) * 1e-30).to(dtype)
    if bool((tiny != 0).any()):
        assert not plainly_right(torch.zeros_like(tiny), tiny, allowed, {})


def test_the_quick_look_at_integers():
    expected = torch.arange(24).reshape(2, 3, 4)
    assert plainly_right(expected.clone(), expected, budget(torch.int64), {})
    assert not plainly_right(expected + (expected == 5), expected, budget(torch.int64), {})


def test_a_lower_precision_is_told_as_a_multiple_of_the_honest_error():
    a, b, own, wide, allowed = matmul()
    _, honest = honest_error(own, wide)
    # Beneath the element-wise bound, which follows the problem's own tolerance, so that the norm decides.
    allowed = budget(FP32, *honest_error(own, wide), atol=1.0)
    comparison = against(round_to(a, 10) @ round_to(b, 10), wide, allowed)
    assert comparison.mismatch.elements_wrong == 0
    told = describe(comparison.mismatch, honest)
    assert f"{comparison.norm_error / honest:.3g} times the honest error" in told
    assert comparison.norm_error / honest > 100
