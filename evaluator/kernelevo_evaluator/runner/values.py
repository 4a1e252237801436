"""Nested values of tensors, and their place in shared memory."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Any

import torch

from kernelevo_evaluator.messages.layout import (
    ITEM_SIZE,
    PAGE,
    ConstantLeaf,
    DictNode,
    Layout,
    ListNode,
    Node,
    TensorLeaf,
    TensorSpec,
    TupleNode,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelevo_evaluator.device_memory import Block

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in ITEM_SIZE}
_HOST = torch.device("cpu")
NAMES: dict[torch.dtype, str] = {dtype: name for name, dtype in DTYPES.items()}


class ValueUnsupported(Exception):
    """A value that cannot cross, with the reason."""


def flatten(value: Any, where: str = "value") -> tuple[Node, list[torch.Tensor]]:
    """The tree of a nested value, and its tensors in order. Tensors come back detached.

    Raises:
        ValueUnsupported: something that is neither a dense tensor nor a plain value, list, tuple or dict.
    """
    tensors: list[torch.Tensor] = []
    return _flatten(value, tensors, where, 0), tensors


def _flatten(value: Any, tensors: list[torch.Tensor], where: str, depth: int) -> Node:
    if depth > 12:
        raise ValueUnsupported(f"{where} is nested deeper than 12 levels")
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.device.type == "meta":
            raise ValueUnsupported(
                f"{where} is a {value.layout} tensor on {value.device}: only dense tensors can cross"
            )
        if value.dtype not in NAMES:
            raise ValueUnsupported(f"{where} has dtype {value.dtype}: known are {', '.join(DTYPES)}")
        tensors.append(value.detach())
        return TensorLeaf(len(tensors) - 1)
    if value is None or isinstance(value, bool | int | float | str):
        return ConstantLeaf(_plain(value, where))
    if isinstance(value, list | tuple):
        items = tuple(_flatten(item, tensors, f"{where}[{i}]", depth + 1) for i, item in enumerate(value))
        return ListNode(items) if isinstance(value, list) else TupleNode(items)
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise ValueUnsupported(f"{where} is a dict whose keys are not all strings")
        return DictNode(
            tuple(str(key) for key in value),
            tuple(_flatten(item, tensors, f"{where}[{key!r}]", depth + 1) for key, item in value.items()),
        )
    raise ValueUnsupported(
        f"{where} is a {type(value).__name__}: only tensors, plain values, lists, tuples and dicts can cross"
    )


def _plain(value: bool | int | float | str | None, where: str) -> bool | int | float | str | None:
    """The value as exactly one of the plain types: numpy's scalars and enumerations derive from them."""
    if isinstance(value, str):
        text = "".join(value)
        if text.encode(errors="replace").decode() != text:
            raise ValueUnsupported(f"{where} is a string that is no valid text")
        return text
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int) and not isinstance(value, bool):
        number = int(value)
        if not -(1 << 63) <= number < 1 << 63:
            raise ValueUnsupported(f"{where} is an integer of more than 64 bits")
        return number
    return value


def unflatten(node: Node, tensors: Sequence[torch.Tensor]) -> Any:
    """The nested value of a tree."""
    if isinstance(node, TensorLeaf):
        return tensors[node.index]
    if isinstance(node, ConstantLeaf):
        return node.value
    if isinstance(node, ListNode):
        return [unflatten(item, tensors) for item in node.items]
    if isinstance(node, TupleNode):
        return tuple(unflatten(item, tensors) for item in node.items)
    return {key: unflatten(item, tensors) for key, item in zip(node.keys, node.items, strict=True)}


def _dense_stride(tensor: torch.Tensor) -> tuple[int, ...]:
    """The tensor's own strides where they are a permutation of the dense ones, else the contiguous ones."""
    expected = 1
    for step, size in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1):
        if step != expected:
            return tuple(torch.empty(tensor.shape, device="meta").stride())
        expected *= size
    return tuple(tensor.stride())


def layout_of(tree: Node, tensors: Sequence[torch.Tensor]) -> Layout:
    """Place tensors behind each other, each on a cache line of its own, in a slot of whole pages."""
    offset = 0
    specs = []
    for tensor in tensors:
        nbytes = tensor.numel() * tensor.element_size()
        specs.append(
            TensorSpec(
                shape=tuple(tensor.shape),
                stride=_dense_stride(tensor),
                dtype=NAMES[tensor.dtype],
                offset=offset,
                nbytes=nbytes,
            )
        )
        offset = (offset + nbytes + 63) // 64 * 64
    return Layout(tree=tree, tensors=tuple(specs), nbytes=max(PAGE, (offset + PAGE - 1) // PAGE * PAGE))


class Shared:
    """Memory that the referee lent, mapped readable and writable."""

    def __init__(self, fd: int, nbytes: int, device: torch.device = _HOST) -> None:
        self.device = device
        self._block: Block | None = None
        if device.type == "cuda":
            from kernelevo_evaluator.device_memory import Block

            self._block = Block.attach(fd, nbytes)
        else:
            self._map = mmap.mmap(fd, nbytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)

    def flat(self, offset: int, nbytes: int) -> torch.Tensor:
        """Some of it as uint8 [nbytes], with a storage of its own: a model sees of it what its tensor says, and no more."""
        if self._block is not None:
            tensor: torch.Tensor = torch.as_tensor(self._block.part(offset, nbytes), device=self.device)
            return tensor
        return torch.frombuffer(self._map, dtype=torch.uint8, count=nbytes, offset=offset)


def views(layout: Layout, memory: Shared, slot: int) -> list[torch.Tensor]:
    """Tensors that alias one slot of shared memory."""
    base = slot * layout.nbytes
    result = []
    for spec in layout.tensors:
        dtype = DTYPES[spec.dtype]
        if spec.nbytes == 0:
            result.append(torch.empty_strided(spec.shape, spec.stride, dtype=dtype, device=memory.device))
            continue
        flat = memory.flat(base + spec.offset, spec.nbytes).view(dtype)
        result.append(flat.as_strided(spec.shape, spec.stride))
    return result
