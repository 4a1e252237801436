"""Nested values of tensors, on their way through shared memory."""

from __future__ import annotations

import enum
import os
from collections import OrderedDict

import numpy as np
import pytest
import torch

from kernelevo_evaluator.messages.codec import encode
from kernelevo_evaluator.messages.layout import ITEM_SIZE
from kernelevo_evaluator.messages.runner import Described, decode_reply
from kernelevo_evaluator.referee.buffers import Region, shaped, tensors_of
from kernelevo_evaluator.runner.values import (
    DTYPES,
    Shared,
    ValueUnsupported,
    flatten,
    layout_of,
    unflatten,
    views,
)


def cross(value):
    """From a runner's value to the referee's private bytes and back to a value, by the wire's own checks."""
    tree, tensors = flatten(value)
    layout = decode_reply(encode(Described(nonce=1, layout=layout_of(tree, tensors)))).layout
    region = Region(layout, 3, "test")
    try:
        for view, tensor in zip(views(layout, Shared(region.fd, 3 * layout.nbytes), 1), tensors, strict=True):
            view.copy_(tensor)
        flat = tensors_of(layout, region.copy_out(1))
        return unflatten(layout.tree, [shaped(f, s) for f, s in zip(flat, layout.tensors, strict=True)])
    finally:
        region.close()


def make(dtype, shape):
    if dtype is torch.bool:
        return torch.rand(shape) > 0.5
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, dtype=torch.complex64 if dtype.is_complex else FLOAT).to(dtype)
    return torch.randint(0, 100, shape).to(dtype)


FLOAT = torch.float32


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5), (2, 0, 3), (1, 1, 1)])
@pytest.mark.parametrize("name", ITEM_SIZE)
def test_every_dtype_and_shape(name, shape):
    tensor = make(DTYPES[name], shape)
    back = cross([tensor])[0]
    assert back.dtype is tensor.dtype
    assert back.shape == tensor.shape
    assert torch.equal(back, tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).reshape(3, 4).t(),
        torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1),
        torch.arange(4.0).expand(3, 4),
        torch.arange(20.0)[::2],
        torch.arange(20.0).reshape(4, 5)[:, 1:3],
        torch.arange(16.0).reshape(1, 2, 2, 4).to(memory_format=torch.channels_last),
        torch.arange(9.0).unfold(0, 3, 1),
    ],
    ids=["transposed", "permuted", "expanded", "stepped", "sliced", "channels_last", "overlapping"],
)
def test_strides(tensor):
    back = cross(tensor)
    assert torch.equal(back, tensor)
    if tensor.is_contiguous() or (tensor.numel() == tensor.untyped_storage().nbytes() // 4 and tensor.dim() > 1):
        assert back.stride() == tensor.stride() or back.is_contiguous()


def test_dense_strides_are_kept():
    for tensor in (torch.zeros(3, 4).t(), torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)):
        assert cross(tensor).stride() == tensor.stride()


def test_structure():
    value = {
        "a": [torch.ones(2), (1, None, "text", 2.5, True)],
        "b": ({"c": torch.zeros(3, dtype=torch.bool)}, [], ()),
    }
    back = cross(value)
    assert list(back) == ["a", "b"]
    assert back["a"][1] == (1, None, "text", 2.5, True)
    assert type(back["a"][1][4]) is bool
    assert back["b"][1:] == ([], ())
    assert torch.equal(back["b"][0]["c"], torch.zeros(3, dtype=torch.bool))


class Mode(enum.IntEnum):
    FAST = 3


class Name(enum.StrEnum):
    LONG = "long"


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.float64(1.5), 1.5),
        (np.str_("x"), "x"),
        (Mode.FAST, 3),
        (Name.LONG, "long"),
        (float("inf"), float("inf")),
        (-(2**63), -(2**63)),
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (torch.Size([1, 2]), (1, 2)),
    ],
)
def test_what_derives_from_plain_values(value, plain):
    back = cross([value])[0]
    assert back == plain
    assert type(back) is type(plain)


@pytest.mark.parametrize(
    "value",
    [
        {1: torch.ones(1)},
        {"a": object()},
        2**63,
        2**200,
        "\ud800",
        {1, 2},
        np.zeros(3),
        b"bytes",
        torch.ones(2, 2).to_sparse(),
        torch.empty(2, device="meta"),
        torch.zeros(2, dtype=torch.float8_e4m3fn),
    ],
    # Without the address of an object: workers that share the tests must know them by the same names.
    ids=lambda value: str(value).partition(" at 0x")[0],
)
def test_what_cannot_cross(value):
    with pytest.raises(ValueUnsupported):
        flatten([value])


def test_endless_nesting():
    loop = []
    loop.append(loop)
    with pytest.raises(ValueUnsupported, match="nested"):
        flatten(loop)


def test_gradients_stay_behind():
    tensor = torch.ones(2, requires_grad=True)
    assert not flatten(tensor)[1][0].requires_grad


# --- The referee's memory


def test_the_size_of_lent_memory_is_sealed():
    region = Region(layout_of(*flatten(torch.zeros(10))), 2, "test")
    for size in (0, 1 << 20):
        with pytest.raises(PermissionError):
            os.ftruncate(region.fd, size)
    region.close()


def test_a_copy_is_private():
    region = Region(layout_of(*flatten(torch.zeros(10))), 1, "test")
    region.write(0, [torch.arange(10.0)])
    copy = region.copy_out(0)
    region.poison(0)
    assert torch.equal(tensors_of(region.layout, copy)[0], torch.arange(10.0))
    assert bool(region.views(0)[0].isnan().all())
    region.close()


def test_slots_do_not_touch():
    region = Region(layout_of(*flatten([torch.zeros(1500), torch.zeros(3)])), 3, "test")
    for slot in range(3):
        region.write(slot, [torch.full((1500,), float(slot)), torch.full((3,), float(slot))])
    for slot in range(3):
        assert all(bool((t == slot).all()) for t in tensors_of(region.layout, region.copy_out(slot)))
    region.close()


def test_forgotten_memory_is_given_back(count_descriptors):
    before = count_descriptors()
    layout = layout_of(*flatten(torch.zeros(10)))
    for _ in range(10):
        Region(layout, 1, "test")
    closed = Region(layout, 1, "test")
    closed.close()
    del closed
    assert count_descriptors() == before
