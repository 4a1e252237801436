"""Whatever a runner sends is either a sound reply or refused, in one way only."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelevo_evaluator.messages.codec import MessageInvalid, encode
from kernelevo_evaluator.messages.layout import (
    ConstantLeaf,
    DictNode,
    Layout,
    ListNode,
    TensorLeaf,
    TensorSpec,
    TupleNode,
)
from kernelevo_evaluator.messages.runner import (
    BuildReply,
    BuildRequest,
    Constructed,
    Described,
    Done,
    Failed,
    Ready,
    Run,
    decode_reply,
)


def spec(shape=(2, 3), stride=(3, 1), dtype="float32", offset=0, nbytes=24):
    return TensorSpec(shape=shape, stride=stride, dtype=dtype, offset=offset, nbytes=nbytes)


def layout(*specs, tree=None, nbytes=4096):
    return Layout(tree=tree or TupleNode(tuple(TensorLeaf(i) for i in range(len(specs)))), tensors=specs, nbytes=nbytes)


GOOD = layout(spec(), spec(dtype="int64", shape=(), stride=(), offset=64, nbytes=8))
REPLIES = [
    Ready(torch="2"),
    Done(nonce=1, claimed_ns=5, note="x"),
    Constructed(nonce=1, init=GOOD, names=("a", "b"), parameters=(True, False), weights=GOOD),
    Described(nonce=2, layout=GOOD),
    Failed(nonce=3, kind="runtime", error="E", message="m", traceback="t", line=3),
    BuildRequest(nonce=4, name="n", cpp_sources=("x",), functions={"f": "doc"}),
]


@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: type(reply).__name__)
def test_round_trip(reply):
    assert decode_reply(encode(reply)) == reply


def refused(data):
    """Decodes, or raises `MessageInvalid`: anything else fails the test."""
    try:
        decode_reply(data)
    except MessageInvalid:
        return True
    return False


@given(st.binary(max_size=300))
def test_random_bytes(data):
    refused(data)


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(plain)
def test_random_values(value):
    refused(msgspec.msgpack.encode(value))


@settings(max_examples=300)
@given(st.sampled_from(REPLIES), st.data())
def test_mutated_bytes(reply, data):
    raw = bytearray(encode(reply))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    refused(bytes(raw[: data.draw(st.integers(0, len(raw)))]))


@settings(max_examples=300)
@given(st.sampled_from(REPLIES), st.data())
def test_mutated_fields(reply, data):
    value = msgspec.msgpack.decode(encode(reply))
    holder = value
    while True:
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        if not keys:
            break
        key = data.draw(st.sampled_from(keys))
        if isinstance(holder[key], dict | list) and data.draw(st.booleans()):
            holder = holder[key]
            continue
        holder[key] = data.draw(plain)
        break
    refused(msgspec.msgpack.encode(value))


number = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2, 63, 64, 4095, 4096, 2**31, 2**48, 2**48 + 1])


@given(
    st.lists(
        st.builds(
            spec,
            shape=st.lists(number, max_size=4).map(tuple),
            stride=st.lists(number, max_size=4).map(tuple),
            dtype=st.sampled_from(["float32", "bool", "complex128", "float8", ""]),
            offset=number,
            nbytes=number,
        ),
        max_size=3,
    ),
    number,
)
def test_hostile_geometry_is_never_computed_with(specs, nbytes):
    made = layout(*specs, nbytes=nbytes)
    try:
        made.check()
    except MessageInvalid:
        return
    end = 0
    for one in specs:
        assert one.nbytes == math.prod(one.shape) * {"float32": 4, "bool": 1, "complex128": 16}[one.dtype]
        assert end <= one.offset <= end + 63
        end = one.offset + one.nbytes
    assert end <= nbytes < max(end, 1) + 4096


@pytest.mark.parametrize(
    "made",
    [
        layout(spec(dtype="float8_e4m3fn")),
        layout(spec(dtype="x" * 10000)),
        layout(spec(nbytes=23)),
        layout(spec(shape=(-2, -3))),
        layout(spec(shape=(2, 3, 1))),
        layout(spec(stride=(3, 2))),
        layout(spec(stride=(0, 1))),
        layout(spec(stride=(-3, 1))),
        layout(spec(shape=(1, 6), stride=(-5, 1))),
        layout(spec(shape=(1,) * 33, stride=(1,) * 33, nbytes=4)),
        layout(spec(shape=(0, 2**60), stride=(1, 1), nbytes=0)),
        layout(spec(offset=1)),
        layout(spec(offset=64)),
        layout(spec(offset=-64)),
        layout(spec(), spec()),
        layout(spec(), nbytes=0),
        layout(spec(), nbytes=4097),
        layout(spec(), nbytes=1 << 50),
        layout(spec(), tree=TensorLeaf(1)),
        layout(spec(), tree=ConstantLeaf(1)),
        layout(spec(), tree=TupleNode((TensorLeaf(0), TensorLeaf(0)))),
        layout(spec(), tree=DictNode(keys=("a",), items=(TensorLeaf(0), ConstantLeaf(1)))),
        layout(spec(), tree=DictNode(keys=("a", "b"), items=(TensorLeaf(0),))),
    ],
)
def test_unsound_layouts(made):
    with pytest.raises(MessageInvalid):
        made.check()
    assert refused(encode(Described(nonce=1, layout=made)))


def test_sound_layouts():
    layout(nbytes=4096).check()
    layout(spec(shape=(3, 2), stride=(1, 3))).check()
    layout(spec(shape=(0, 3), stride=(3, 1), nbytes=0)).check()
    layout(spec(shape=(), stride=(), nbytes=4), tree=TensorLeaf(0)).check()
    layout(spec(shape=(2048,), stride=(1,), nbytes=8192), nbytes=8192).check()


def test_depth():
    for depth, sound in ((10, True), (40, False)):
        tree = TensorLeaf(0)
        for _ in range(depth):
            tree = ListNode((tree,))
        assert refused(encode(Described(nonce=1, layout=layout(spec(), tree=tree)))) is not sound
    assert refused(b"\x91" * 1_000_000)
    nested = b"\x82\xa4type\xa1l\xa5items\x91" * 50_000 + b"\x82\xa4type\xa1c\xa5value\xc0"
    head = msgspec.msgpack.encode({"type": "described", "nonce": 1})[1:]
    assert refused(b"\x83" + head + b"\xa6layout\x83\xa4tree" + nested + b"\xa7tensors\x90\xa6nbytes\xcd\x10\x00")


def test_names_and_weights_must_agree():
    assert refused(encode(Constructed(nonce=1, init=None, names=("a",), parameters=(True, True), weights=GOOD)))


@pytest.mark.parametrize(
    "reply",
    [
        Done(nonce=1, claimed_ns=-1),
        Done(nonce=1, claimed_ns=2**63),
        Done(nonce=1, note="x" * 20_000),
        Failed(nonce=1, kind="x" * 300, error="", message=""),
        Failed(nonce=1, kind="", error="x" * 300, message=""),
        Failed(nonce=1, kind="", error="", message="x" * 20_000),
        Failed(nonce=1, kind="", error="", message="", traceback="x" * 20_000),
        Failed(nonce=1, kind="", error="", message="", line=2**31),
        Failed(nonce=1, kind="", error="", message="", line=-1),
        Ready(torch="x" * 300),
    ],
)
def test_claims_that_would_fill_a_result(reply):
    assert refused(encode(reply))


@pytest.mark.parametrize("message", [Run(nonce=1, ring=0, slots=(1,)), BuildReply(nonce=1, ok=True)])
def test_commands_are_no_replies(message):
    assert refused(encode(message))
