"""Whatever a runner sends, a model returns or a problem tolerates: properties that hold for all of it."""

from __future__ import annotations

import math
import os

import hypothesis.strategies as st
import msgspec
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings

from kernelevo_evaluator.messages.codec import MessageInvalid, encode
from kernelevo_evaluator.messages.runner import (
    Described,
    Done,
    Failed,
    MapRing,
    Ready,
    Traced,
    TracedPart,
    decode_reply,
)
from kernelevo_evaluator.referee.compare import budget_from, compare, plainly_right
from kernelevo_evaluator.referee.compliance import share_on_cpu, share_on_gpu
from kernelevo_evaluator.runner.rings import Ring, WrongInterface
from kernelevo_evaluator.runner.values import ValueUnsupported, flatten, layout_of, unflatten

RELAXED = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

# --- Messages

_PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=5),
    max_leaves=20,
)
_KINDS = ("ready", "done", "constructed", "described", "traced", "failed", "build")
_FIELDS = st.sampled_from(
    [
        "nonce",
        "layout",
        "claimed_ns",
        "places",
        "names",
        "weights",
        "parts",
        "wall_us",
        "kind",
        "error",
        "message",
        "name",
        "init",
    ]
)


@RELAXED
@given(st.binary(max_size=300))
@example(b"\x91" * 5000 + b"\xc0")
@example(b"\x81" * 5000)
@example(b"\xdd\xff\xff\xff\xff")
def test_any_bytes_are_a_reply_or_refused(data):
    try:
        decode_reply(data)
    except MessageInvalid as error:
        assert len(str(error)) < 400


@RELAXED
@given(st.sampled_from(_KINDS), st.dictionaries(_FIELDS, _PLAIN, max_size=8))
def test_any_fields_are_a_reply_or_refused(kind, fields):
    try:
        data = msgspec.msgpack.encode({"type": kind, **fields})
    except (OverflowError, UnicodeEncodeError):
        return
    try:
        reply = decode_reply(data)
    except MessageInvalid:
        return
    assert isinstance(reply, Ready | Done | Failed | Described | Traced) or type(reply).__name__ in (
        "Constructed",
        "BuildRequest",
    )


@RELAXED
@given(st.data())
def test_a_reply_that_lost_or_gained_bytes(data):
    whole = encode(Done(nonce=5, claimed_ns=7, places=tuple(range(20))))
    at = data.draw(st.integers(0, len(whole) - 1))
    other = data.draw(st.binary(max_size=3))
    try:
        reply = decode_reply(whole[:at] + other + whole[at + data.draw(st.integers(0, 3)) :])
    except MessageInvalid:
        return
    assert getattr(reply, "nonce", 0) is not None


_TENSOR = st.fixed_dictionaries(
    {
        "shape": st.lists(st.integers(-2, 2**40), max_size=4),
        "stride": st.lists(st.integers(-2, 2**40), max_size=4),
        "dtype": st.sampled_from(["float32", "int64", "bool", "complex64", "float8", ""]),
        "offset": st.integers(-1, 2**50),
        "nbytes": st.integers(-1, 2**50),
    }
)


@RELAXED
@given(st.lists(_TENSOR, max_size=3), st.integers(-1, 2**50))
def test_a_claimed_geometry_is_sound_or_refused(tensors, nbytes):
    """Nothing that is taken reaches beyond the slot it claims."""
    tree = {"type": "leaf", "index": 0}
    data = msgspec.msgpack.encode(
        {"type": "described", "nonce": 1, "layout": {"tree": tree, "tensors": tensors, "nbytes": nbytes}}
    )
    try:
        layout = decode_reply(data).layout
    except MessageInvalid:
        return
    for spec in layout.tensors:
        assert 0 <= spec.offset <= spec.offset + spec.nbytes <= layout.nbytes
        last = sum((n - 1) * s for n, s in zip(spec.shape, spec.stride, strict=True)) if spec.numel else -1
        assert (last + 1) * (spec.nbytes // max(1, spec.numel)) <= spec.nbytes


@RELAXED
@given(st.lists(st.tuples(st.text(max_size=40), st.floats(0, 1e9)), max_size=12), st.floats(0, 1e9))
def test_shares_of_any_trace_are_shares(parts, wall):
    trace = Traced(nonce=1, wall_us=wall, parts=tuple(TracedPart(name=n, us=us, count=1) for n, us in parts))
    for share in (share_on_cpu(trace), share_on_gpu(trace)):
        assert 0.0 <= share.own <= 1.0
        assert 0.0 <= share.library <= 1.0
        assert share.describe()


# --- Output containers

_DTYPES = [
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
]
_SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)


@st.composite
def dense(draw, dtype=None, shape=None):
    """A tensor of some shape, dtype and memory order."""
    dtype = dtype or draw(st.sampled_from(_DTYPES))
    shape = draw(_SHAPES) if shape is None else shape
    made = torch.randint(0, 2, shape).to(dtype)
    if len(shape) > 1 and draw(st.booleans()):
        made = made.transpose(0, -1).contiguous().transpose(0, -1)
    return made


def containers(leaf):
    return st.recursive(
        leaf,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.lists(inner, max_size=3).map(tuple)
            | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
        ),
        max_leaves=5,
    )


@RELAXED
@given(containers(dense()))
def test_a_container_comes_back_as_it_was(value):
    tree, tensors = flatten(value)
    layout = layout_of(tree, tensors)
    layout.check()
    again, others = flatten(unflatten(layout.tree, list(tensors)))
    assert again == tree
    assert all(torch.equal(a, b) for a, b in zip(tensors, others, strict=True))
    for spec in layout.tensors:
        assert spec.offset % 64 == 0


def ring_for(value):
    """A ring of one slot in plain memory whose outputs are laid out like a value."""
    tree, tensors = flatten(value)
    layout = layout_of(tree, tensors)
    empty = layout_of(*flatten([torch.zeros(1)]))
    fds = []
    for one in (empty, layout):
        fd = os.memfd_create("test")
        os.ftruncate(fd, one.nbytes)
        fds.append(fd)
    try:
        ring = Ring(MapRing(nonce=1, ring=0, slots=1, inputs=empty, outputs=layout), fds, torch.device("cpu"))
    finally:
        for fd in fds:
            os.close(fd)
    return ring, tensors


@RELAXED
@given(containers(dense()))
def test_what_the_reference_returns_is_stored_bit_by_bit(value):
    ring, tensors = ring_for(value)
    ring.store(value, 0)
    for stored, tensor in zip(ring.outputs[0], tensors, strict=True):
        assert torch.equal(torch.atleast_1d(stored), torch.atleast_1d(tensor))


class Subclass(torch.Tensor):
    pass


def _views(x):
    return {
        "expanded": x[:1].expand(4, 6),
        "overlapping": torch.arange(16.0).as_strided((4, 6), (1, 2)),
        "transposed": x.t().contiguous().t(),
        "a step": torch.randn(8, 12)[::2, ::2],
        "requires grad": x.clone().requires_grad_(),
        "a parameter": torch.nn.Parameter(x.clone()),
    }


@pytest.mark.parametrize("name", _views(torch.zeros(4, 6)))
def test_views_of_all_kinds_are_copied_by_value(name):
    x = torch.randn(4, 6)
    ring, _ = ring_for(x)
    with torch.no_grad():
        value = _views(x)[name]
        ring.store(value, 0)
        assert torch.equal(ring.outputs[0][0], value.detach())


_WRONG = {
    "a subclass": lambda x: x.as_subclass(Subclass),
    "sparse": lambda x: x.to_sparse(),
    "meta": lambda x: x.to("meta"),
    "complex": lambda x: x.to(torch.complex64),
    "bool": lambda x: x.bool(),
    "integers": lambda x: x.long(),
    "another float": lambda x: x.double(),
    "0-d": lambda x: x.sum(),
    "empty": lambda x: x[:0],
    "one dimension more": lambda x: x[None],
    "a list": lambda x: [x],
    "nothing": lambda x: None,
    "an array": lambda x: x.numpy(),
    "a number": lambda x: 1.0,
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
}


@pytest.mark.parametrize("name", _WRONG)
@pytest.mark.filterwarnings("ignore")
def test_what_is_no_dense_tensor_of_the_right_kind_is_refused(name):
    x = torch.randn(4, 6)
    ring, _ = ring_for(x)
    with pytest.raises(WrongInterface):
        ring.store(_WRONG[name](x), 0)


@RELAXED
@given(containers(dense(torch.float32, (2,))), containers(dense(torch.float32, (2,))))
def test_another_structure_is_refused(expected, returned):
    ring, _ = ring_for(expected)
    try:
        same = _structure(flatten(returned)[0]) == _structure(flatten(expected)[0])
    except ValueUnsupported:
        return
    if same:
        ring.store(returned, 0)
    else:
        with pytest.raises(WrongInterface):
            ring.store(returned, 0)


def _structure(node):
    """A tree by its shape alone; a list for a tuple is taken, and keys in any order."""
    name = type(node).__name__
    if name == "TensorLeaf":
        return "tensor"
    items = [_structure(item) for item in getattr(node, "items", ())]
    if name == "DictNode":
        return ("dict", tuple(sorted(zip(node.keys, map(repr, items), strict=True))))
    return ("sequence", tuple(map(repr, items)))


# --- Tolerances

_ERRORS = st.floats(0, 1e3)


@RELAXED
@given(st.sampled_from(_DTYPES[:4]), _ERRORS, _ERRORS, st.none() | _ERRORS, st.none() | _ERRORS)
def test_a_budget_is_never_narrowed(dtype, largest, norm, rtol, atol):
    plain = budget_from("declared", 0, dtype, largest, norm, None, None)
    asked = budget_from("declared", 0, dtype, largest, norm, rtol, atol)
    assert asked.rtol >= max(plain.rtol, rtol or 0)
    assert asked.atol >= max(plain.atol, atol or 0)
    assert asked.norm_rtol >= plain.norm_rtol >= norm
    assert asked.honest_norm_error == norm


@RELAXED
@given(st.integers(0, 2**31), st.sampled_from([(1, 1), (3, 5), (17, 64), (64, 17), (2, 3, 40)]), st.floats(1e-20, 1e20))
def test_what_is_expected_is_right_at_every_scale(seed, shape, scale):
    torch.manual_seed(seed)
    expected = torch.randn(shape, dtype=torch.float64) * scale
    budget = budget_from("declared", 0, torch.float32, 0.0, 0.0, None, None)
    assert compare(expected.float(), expected, budget, 0, "declared").ok
    assert plainly_right(expected.float(), expected.float(), budget, {})


@RELAXED
@given(
    st.integers(0, 2**31),
    st.integers(0, 63),
    st.sampled_from([math.nan, math.inf, -math.inf, 1e30, 0.5]),
    st.booleans(),
)
def test_one_wrong_element_is_wrong_wherever_it_lies(seed, at, value, tolerant):
    torch.manual_seed(seed)
    expected = torch.rand(8, 8, dtype=torch.float64) + 1
    budget = budget_from("declared", 0, torch.float32, 0.0, 0.0, 1e-3 if tolerant else None, None)
    got = expected.float()
    got.view(-1)[at] = value
    comparison = compare(got, expected, budget, 0, "declared", expected.float())
    assert not comparison.ok
    assert comparison.mismatch.index == (at // 8, at % 8)
    assert not plainly_right(got, expected.float(), budget, {})


@RELAXED
@given(st.integers(0, 2**31), st.floats(0.0, 2.0), st.sampled_from([(8, 8), (40, 64)]))
def test_the_quick_look_never_takes_what_the_comparison_refuses(seed, share, shape):
    torch.manual_seed(seed)
    expected = torch.randn(shape, dtype=torch.float64)
    own = expected.float()
    budget = budget_from("declared", 0, torch.float32, 1e-6, 1e-6, None, None)
    got = (expected + share * budget.atol * torch.randn(shape, dtype=torch.float64)).float()
    if plainly_right(got, own, budget, {}):
        assert compare(got, expected, budget, 0, "declared", own).ok
