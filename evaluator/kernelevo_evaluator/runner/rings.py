"""A ring of input and output slots in shared memory, and how a model's result gets into a slot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from kernelevo_evaluator.messages.layout import DictNode, ListNode, TensorLeaf, TupleNode
from kernelevo_evaluator.runner.values import DTYPES, map_shared, unflatten, views

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelevo_evaluator.messages.layout import Node, TensorSpec
    from kernelevo_evaluator.messages.runner import MapRing


class WrongInterface(Exception):
    """The model returned something other than what the reference returns."""


class Ring:
    """Slots of one shape. `arguments[i]` alias slot i's inputs, `outputs[i]` its outputs."""

    def __init__(self, message: MapRing, fds: Sequence[int]) -> None:
        self.mutated = message.mutated
        tree = message.outputs.tree
        if self.mutated:
            assert isinstance(tree, TupleNode)
            tree = tree.items[0]
        self._tree = tree
        inputs = map_shared(fds[0], message.slots * message.inputs.nbytes)
        outputs = map_shared(fds[1], message.slots * message.outputs.nbytes)
        self.inputs = [views(message.inputs, inputs, slot) for slot in range(message.slots)]
        self.outputs = [views(message.outputs, outputs, slot) for slot in range(message.slots)]
        self.arguments: list[list[Any]] = [list(unflatten(message.inputs.tree, tensors)) for tensors in self.inputs]
        self.expected: list[list[torch.Tensor]] = []
        if message.expected is not None:
            memory = map_shared(fds[2], message.expected_slots * message.expected.nbytes)
            self.expected = [views(message.expected, memory, slot) for slot in range(message.expected_slots)]
        self._specs = message.outputs.tensors
        self._single = isinstance(tree, TensorLeaf)

    def store(self, result: Any, slot: int) -> None:
        """Copy a model's result into an output slot.

        Raises:
            WrongInterface: another structure, type, shape or dtype than the reference's.
        """
        views_of_slot = self.outputs[slot]
        if self._single:
            _copy(result, views_of_slot[0], self._specs[0], "the output")
        else:
            _store(self._tree, result, views_of_slot, self._specs, "the output")
        first = len(views_of_slot) - len(self.mutated)
        for k, index in enumerate(self.mutated):
            views_of_slot[first + k].copy_(self.inputs[slot][index])


def _copy(value: Any, view: torch.Tensor, spec: TensorSpec, where: str) -> None:
    if type(value) is not torch.Tensor and type(value) is not torch.nn.Parameter:
        raise WrongInterface(f"{where} is a {type(value).__module__}.{type(value).__qualname__}, not a torch.Tensor")
    if value.layout is not torch.strided or value.device != view.device:
        raise WrongInterface(f"{where} is a {value.layout} tensor on {value.device}, not a dense one on {view.device}")
    if value.dtype is not DTYPES[spec.dtype]:
        raise WrongInterface(f"{where} has dtype {str(value.dtype).removeprefix('torch.')}, not {spec.dtype}")
    if tuple(value.shape) != spec.shape:
        raise WrongInterface(f"{where} has shape {tuple(value.shape)}, not {spec.shape}")
    if value.data_ptr() == view.data_ptr() and spec.numel:
        # The copy into the slot is a part of every call's time: a model that writes there itself would be spared it.
        raise WrongInterface(f"{where} lies in the evaluator's own memory; return a tensor of the model's own")
    view.copy_(value)


def _store(node: Node, value: Any, slot: list[torch.Tensor], specs: Sequence[TensorSpec], where: str) -> None:
    if isinstance(node, TensorLeaf):
        _copy(value, slot[node.index], specs[node.index], where)
    elif isinstance(node, ListNode | TupleNode):
        if not isinstance(value, list | tuple) or len(value) != len(node.items):
            raise WrongInterface(f"{where} is {_describe(value)}, not a sequence of {len(node.items)}")
        for i, (item, part) in enumerate(zip(node.items, value, strict=True)):
            _store(item, part, slot, specs, f"{where}[{i}]")
    elif isinstance(node, DictNode):
        if not isinstance(value, dict) or set(value) != set(node.keys):
            raise WrongInterface(f"{where} is {_describe(value)}, not a dict with the keys {', '.join(node.keys)}")
        for key, item in zip(node.keys, node.items, strict=True):
            _store(item, value[key], slot, specs, f"{where}[{key!r}]")


def _describe(value: Any) -> str:
    length = f" of {len(value)}" if isinstance(value, list | tuple | dict) else ""
    return f"a {type(value).__name__}{length}"
