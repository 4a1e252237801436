"""Values that cross by shared memory: the tree of a nested value, and where its tensors lie in a slot.

What a runner says of a layout is a claim: `Layout.check` bounds its geometry before anybody computes with it.
"""

from __future__ import annotations

import math

import msgspec

from kernelevo_evaluator.messages.codec import MessageInvalid

ITEM_SIZE = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}
"""Bytes an element, for each dtype that may cross."""
FLOATING = frozenset({"float16", "bfloat16", "float32", "float64"})
PAGE = 4096
_MAXIMUM_TENSORS = 4096
_MAXIMUM_DEPTH = 16
_ALIGNMENT = 64
_MAXIMUM_SIZE = 1 << 48
"""Largest size and stride of a dimension, in elements: beyond any memory, and within what torch can count."""


class TensorSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One dense tensor inside a slot: `offset` and `nbytes` in bytes, `stride` in elements."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    offset: int
    nbytes: int

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


class TensorLeaf(msgspec.Struct, frozen=True, tag="t"):
    """The tensor at this index of the layout."""

    index: int


class ConstantLeaf(msgspec.Struct, frozen=True, tag="c"):
    """A plain value."""

    value: bool | int | float | str | None


class ListNode(msgspec.Struct, frozen=True, tag="l"):
    """A list."""

    items: tuple[Node, ...]


class TupleNode(msgspec.Struct, frozen=True, tag="u"):
    """A tuple."""

    items: tuple[Node, ...]


class DictNode(msgspec.Struct, frozen=True, tag="d"):
    """A dict with string keys, in order."""

    keys: tuple[str, ...]
    items: tuple[Node, ...]


Node = TensorLeaf | ConstantLeaf | ListNode | TupleNode | DictNode


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the tensors of a nested value lie in one slot of `nbytes` bytes, a multiple of the page."""

    tree: Node
    tensors: tuple[TensorSpec, ...]
    nbytes: int

    @property
    def payload_bytes(self) -> int:
        """Bytes of the tensors alone."""
        return sum(t.nbytes for t in self.tensors)

    def check(self) -> Layout:
        """Return itself if the geometry is sound.

        Raises:
            MessageInvalid: an unknown dtype, a size that does not follow from the shape, a tensor that is not placed right
                behind the one before, a stride that is not a permutation of the dense one, a slot of another size than its
                tensors need, or a tree that does not name every tensor once.
        """
        if len(self.tensors) > _MAXIMUM_TENSORS:
            raise MessageInvalid(f"{len(self.tensors)} tensors; at most {_MAXIMUM_TENSORS} are taken")
        end = 0
        for spec in self.tensors:
            size = ITEM_SIZE.get(spec.dtype)
            if size is None:
                raise MessageInvalid(f"dtype {spec.dtype[:40]!r} cannot cross; known are {', '.join(ITEM_SIZE)}")
            if len(spec.shape) != len(spec.stride) or len(spec.shape) > 32:
                raise MessageInvalid("a tensor's shape and stride do not fit each other")
            if not all(0 <= n <= _MAXIMUM_SIZE for n in (*spec.shape, *spec.stride)):
                raise MessageInvalid("a tensor's size or stride is out of bounds")
            if spec.nbytes != spec.numel * size or spec.offset != _round_up(end, _ALIGNMENT):
                raise MessageInvalid("a tensor's bytes do not follow from its shape")
            if spec.numel and not _is_dense(spec.shape, spec.stride):
                raise MessageInvalid("a tensor's stride is not dense")
            end = spec.offset + spec.nbytes
        if self.nbytes != max(PAGE, _round_up(end, PAGE)):
            raise MessageInvalid("a slot's size does not follow from its tensors")
        seen: list[int] = []
        _collect(self.tree, seen, 0)
        if sorted(seen) != list(range(len(self.tensors))):
            raise MessageInvalid("the tree does not name every tensor once")
        return self


def _round_up(number: int, step: int) -> int:
    return (number + step - 1) // step * step


def _is_dense(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    expected = 1
    for step, size in sorted((s, n) for s, n in zip(stride, shape, strict=True) if n > 1):
        if step != expected:
            return False
        expected *= size
    return True


def _collect(node: Node, seen: list[int], depth: int) -> None:
    if depth > _MAXIMUM_DEPTH:
        raise MessageInvalid(f"values nested deeper than {_MAXIMUM_DEPTH} levels")
    if isinstance(node, TensorLeaf):
        seen.append(node.index)
    elif isinstance(node, DictNode):
        if len(node.keys) != len(node.items):
            raise MessageInvalid("a dict's keys and values differ in number")
        for item in node.items:
            _collect(item, seen, depth + 1)
    elif isinstance(node, ListNode | TupleNode):
        for item in node.items:
            _collect(item, seen, depth + 1)
