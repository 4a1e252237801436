"""A ring of input and output slots in shared memory, and how a model's result gets into a slot."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from kernelevo_evaluator.messages.layout import DictNode, ListNode, TensorLeaf, TupleNode
from kernelevo_evaluator.runner.values import DTYPES, Shared, unflatten, views

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kernelevo_evaluator.messages.layout import Node, TensorSpec
    from kernelevo_evaluator.messages.runner import MapRing
    from kernelevo_evaluator.runner.arena import Arena

    Put = Callable[[Any, TensorSpec, str, int], None]


class WrongInterface(Exception):
    """The model returned something other than what the reference returns."""


@dataclass(slots=True)
class Placed:
    """Where the outputs of a block's calls lie in the arena, and the tensors that keep them there."""

    places: list[int] = field(default_factory=list)
    taken: set[int] = field(default_factory=set)
    held: list[torch.Tensor] = field(default_factory=list)


class Ring:
    """Slots of one shape. `arguments[i]` alias slot i's inputs, `outputs[i]` its outputs."""

    def __init__(self, message: MapRing, fds: Sequence[int], device: torch.device) -> None:
        self.device = device
        self.mutated = message.mutated
        tree = message.outputs.tree
        if self.mutated:
            assert isinstance(tree, TupleNode)
            tree = tree.items[0]
        self._tree = tree
        inputs = Shared(fds[0], message.slots * message.inputs.nbytes, device)
        outputs = Shared(fds[1], (1 if message.arena_bytes else message.slots) * message.outputs.nbytes, device)
        self.inputs = [views(message.inputs, inputs, slot) for slot in range(message.slots)]
        self.outputs = (
            [] if message.arena_bytes else [views(message.outputs, outputs, slot) for slot in range(message.slots)]
        )
        self.arguments: list[list[Any]] = [list(unflatten(message.inputs.tree, tensors)) for tensors in self.inputs]
        self.expected: list[list[torch.Tensor]] = []
        if message.expected is not None:
            memory = Shared(fds[2], message.expected_slots * message.expected.nbytes, device)
            self.expected = [views(message.expected, memory, slot) for slot in range(message.expected_slots)]
        self._specs = message.outputs.tensors
        self._single = isinstance(tree, TensorLeaf)
        self.arena: Arena | None = None
        self.graphs: dict[int, tuple[torch.cuda.CUDAGraph, Placed]] = {}
        """Captured graphs by their number of calls."""
        if message.arena_bytes:
            from kernelevo_evaluator.device_memory import Block
            from kernelevo_evaluator.runner.arena import Arena

            self.arena = Arena(Block.attach(fds[-1], message.arena_bytes))

    def close(self) -> None:
        """Give its memory back, as far as the model holds none of it."""
        self.inputs, self.outputs, self.arguments, self.expected = [], [], [], []
        self.graphs.clear()
        if self.arena is not None:
            self.arena.close()

    def place(self, result: Any, slot: int, block: Placed) -> None:
        """Note where in the arena a model's outputs lie, and hold them there; what lies elsewhere is copied into it.

        Raises:
            WrongInterface: as `store`.
        """
        if self._single:
            self._place(result, self._specs[0], "the output", block)
        else:
            found: list[Any] = [None] * (len(self._specs) - len(self.mutated))

            def put(value: Any, spec: TensorSpec, where: str, index: int) -> None:
                found[index] = (value, spec, where)

            _each(self._tree, result, self._specs, "the output", put)
            for value, spec, where in found:
                self._place(value, spec, where, block)
        for index, spec in zip(self.mutated, self._specs[len(self._specs) - len(self.mutated) :], strict=True):
            self._copy_into_arena(self.inputs[slot][index], spec, block)

    def _place(self, value: Any, spec: TensorSpec, where: str, block: Placed) -> None:
        _check(value, spec, where, self.device)
        pointer: int = value.data_ptr()
        assert self.arena is not None
        offset = self.arena.offset(pointer, spec.nbytes)
        if offset is None or pointer in block.taken or value.stride() != spec.stride:
            self._copy_into_arena(value, spec, block)
            return
        block.taken.add(pointer)
        block.places.append(offset)
        block.held.append(value)

    def _copy_into_arena(self, value: torch.Tensor, spec: TensorSpec, block: Placed) -> None:
        own = torch.empty_strided(spec.shape, spec.stride, dtype=value.dtype, device=value.device)
        own.copy_(value)
        assert self.arena is not None
        offset = self.arena.offset(own.data_ptr(), spec.nbytes)
        if offset is None:
            raise MemoryError("the calls of a block take more device memory than the evaluator has for their outputs")
        block.taken.add(own.data_ptr())
        block.places.append(offset)
        block.held.append(own)

    def _copy(self, value: Any, view: torch.Tensor, spec: TensorSpec, where: str) -> None:
        _check(value, spec, where, self.device)
        if value.data_ptr() == view.data_ptr() and spec.numel:
            # The copy into the slot is a part of every call's time: a model that writes there itself would be spared it.
            raise WrongInterface(f"{where} lies in the evaluator's own memory; return a tensor of the model's own")
        view.copy_(value)

    def store(self, result: Any, slot: int) -> None:
        """Copy a model's result into an output slot.

        Raises:
            WrongInterface: another structure, type, shape or dtype than the reference's.
        """
        views_of_slot = self.outputs[slot]
        if self._single:
            self._copy(result, views_of_slot[0], self._specs[0], "the output")
        else:

            def put(value: Any, spec: TensorSpec, where: str, index: int) -> None:
                self._copy(value, views_of_slot[index], spec, where)

            _each(self._tree, result, self._specs, "the output", put)
        first = len(views_of_slot) - len(self.mutated)
        for k, index in enumerate(self.mutated):
            views_of_slot[first + k].copy_(self.inputs[slot][index])


def _check(value: Any, spec: TensorSpec, where: str, device: torch.device) -> None:
    if type(value) is not torch.Tensor and type(value) is not torch.nn.Parameter:
        raise WrongInterface(f"{where} is a {type(value).__module__}.{type(value).__qualname__}, not a torch.Tensor")
    if value.layout is not torch.strided or value.device.type != device.type:
        raise WrongInterface(f"{where} is a {value.layout} tensor on {value.device}, not a dense one on {device}")
    if value.dtype is not DTYPES[spec.dtype]:
        raise WrongInterface(f"{where} has dtype {str(value.dtype).removeprefix('torch.')}, not {spec.dtype}")
    if tuple(value.shape) != spec.shape:
        raise WrongInterface(f"{where} has shape {tuple(value.shape)}, not {spec.shape}")


def _each(node: Node, value: Any, specs: Sequence[TensorSpec], where: str, put: Put) -> None:
    """Hand every tensor of a nested result to `put`, with its spec, its name and its index."""
    if isinstance(node, TensorLeaf):
        put(value, specs[node.index], where, node.index)
    elif isinstance(node, ListNode | TupleNode):
        if not isinstance(value, list | tuple) or len(value) != len(node.items):
            raise WrongInterface(f"{where} is {_describe(value)}, not a sequence of {len(node.items)}")
        for i, (item, part) in enumerate(zip(node.items, value, strict=True)):
            _each(item, part, specs, f"{where}[{i}]", put)
    elif isinstance(node, DictNode):
        if not isinstance(value, dict) or set(value) != set(node.keys):
            raise WrongInterface(f"{where} is {_describe(value)}, not a dict with the keys {', '.join(node.keys)}")
        for key, item in zip(node.keys, node.items, strict=True):
            _each(item, value[key], specs, f"{where}[{key!r}]", put)


def _describe(value: Any) -> str:
    length = f" of {len(value)}" if isinstance(value, list | tuple | dict) else ""
    return f"a {type(value).__name__}{length}"
