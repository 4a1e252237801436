"""The command loop of a runner. Reference and candidate go through the same code, so that what it costs, it costs both."""

from __future__ import annotations

import copy
import os
import random
import time
from typing import TYPE_CHECKING, Any

import torch

from kernelevo_evaluator.channel import ChannelClosed
from kernelevo_evaluator.messages.codec import encode
from kernelevo_evaluator.messages.layout import TensorLeaf, TupleNode
from kernelevo_evaluator.messages.runner import (
    CallAlone,
    CaptureCalls,
    CloseRing,
    CompileModel,
    Construct,
    Constructed,
    CountOperations,
    Described,
    DescribeKernels,
    DescribeOutputs,
    Done,
    Failed,
    LoadModule,
    LoadWeights,
    MakeInputs,
    MapRing,
    OpenDevice,
    Ready,
    Replay,
    Run,
    RunExpected,
    SeedWritten,
    StoreInputs,
    StoreWeights,
    TraceCalls,
    WriteSeed,
    decode_command,
)
from kernelevo_evaluator.runner import compiling, load_inline
from kernelevo_evaluator.runner.launches import checked
from kernelevo_evaluator.runner.modules import failed, import_source
from kernelevo_evaluator.runner.rings import Placed, Ring, WrongInterface
from kernelevo_evaluator.runner.values import (
    DTYPES,
    Shared,
    ValueUnsupported,
    flatten,
    layout_of,
    unflatten,
    views,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from kernelevo_evaluator.channel import Channel
    from kernelevo_evaluator.messages.layout import Node
    from kernelevo_evaluator.messages.runner import Command, Reply
    from kernelevo_evaluator.runner.arena import Arena


class Harness:
    """One module, its model and its rings."""

    def __init__(self, channel: Channel, device: torch.device, open_device: Callable[[], None] | None = None) -> None:
        """`open_device`: what makes a runner on a GPU ready for a candidate, carried out once when it is asked for."""
        self._channel = channel
        self._open_device = open_device
        self._device = device
        self._module: ModuleType | None = None
        self._name = ""
        self._reference = False
        self._defaults: dict[str, Any] = {}
        self._dtype = torch.float32
        self._model: torch.nn.Module | None = None
        self._wide: torch.nn.Module | None = None
        self._call: Callable[..., Any] = _no_model
        self._state: list[torch.Tensor] = []
        self._init: Any = []
        self._init_tensors: list[torch.Tensor] = []
        self._base: tuple[int, list[Any]] | None = None
        """The inputs that the problem's `vary` starts from, and their seed."""
        self._pending: Any = None
        self._pending_tensors: list[torch.Tensor] = []
        self._rings: dict[int, Ring] = {}
        self._held: list[Any] = []
        self._nonce = 0
        """Of the command under way."""

    def serve(self) -> None:
        """Answer commands until the channel closes."""
        self._channel.send(encode(Ready(torch=str(torch.__version__))))
        while True:
            try:
                data, fds = self._channel.receive_with_fds()
            except ChannelClosed:
                return
            command = decode_command(data)
            self._nonce = command.nonce
            try:
                with torch.no_grad():
                    reply = self._answer(command, fds)
            finally:
                for fd in fds:
                    os.close(fd)
            self._channel.send(encode(reply))
            self._held = []

    def _answer(self, command: Command, fds: Sequence[int]) -> Reply:
        kind = (
            "import"
            if isinstance(command, LoadModule)
            else "construct"
            if isinstance(command, Construct)
            else "runtime"
        )
        try:
            reply = self._carry_out(command, fds)
            # What was started on a device is done, and what went wrong on it is known, before the answer.
            self._synchronize()
            return reply
        except (WrongInterface, ValueUnsupported) as error:
            return failed(command.nonce, "interface", error, self._name)
        except (MemoryError, torch.OutOfMemoryError) as error:
            return failed(command.nonce, "memory", error, self._name)
        except SyntaxError as error:
            return failed(command.nonce, "syntax" if kind == "import" else kind, error, self._name)
        except BaseException as error:  # SystemExit and KeyboardInterrupt of a candidate are its errors, not our end
            return failed(command.nonce, kind, error, self._name)

    def _carry_out(self, command: Command, fds: Sequence[int]) -> Reply:
        if isinstance(command, Replay):
            return self._replay(command)
        if isinstance(command, Run):
            return self._run(command)
        if isinstance(command, CloseRing):
            self._close_ring(command.ring)
            return Done(nonce=command.nonce)
        if isinstance(command, CaptureCalls):
            return self._capture(command)
        if isinstance(command, TraceCalls | CountOperations | CallAlone | DescribeKernels):
            from kernelevo_evaluator.runner.observing import observe

            return observe(command, self._call, self._rings, self._device)
        if isinstance(command, RunExpected):
            return self._run_expected(command)
        if isinstance(command, MapRing):
            self._map_ring(command, fds)
            return Done(nonce=command.nonce)
        if isinstance(command, MakeInputs):
            return self._make_inputs(command)
        if isinstance(command, StoreInputs):
            for view, tensor in zip(self._rings[command.ring].inputs[command.slot], self._pending_tensors, strict=True):
                view.copy_(tensor)
            return Done(nonce=command.nonce)
        if isinstance(command, LoadWeights):
            return self._load_weights(command, fds)
        if isinstance(command, StoreWeights):
            layout = layout_of(flatten(list(self._state))[0], self._state)
            for view, tensor in zip(
                views(layout, Shared(fds[0], layout.nbytes, self._device), 0), self._state, strict=True
            ):
                view.copy_(tensor)
            if len(fds) > 1:
                layout = layout_of(flatten(self._init)[0], self._init_tensors)
                memory = Shared(fds[1], layout.nbytes, self._device)
                for view, tensor in zip(views(layout, memory, 0), self._init_tensors, strict=True):
                    view.copy_(tensor)
            return Done(nonce=command.nonce)
        if isinstance(command, DescribeOutputs):
            return self._describe(command)
        if isinstance(command, CompileModel):
            assert self._model is not None
            self._call = torch.compile(self._model)
            return Done(nonce=command.nonce)
        if isinstance(command, WriteSeed):
            return self._write_seed(command)
        if isinstance(command, Construct):
            return self._construct(command, fds)
        if isinstance(command, LoadModule):
            return self._load_module(command)
        if isinstance(command, OpenDevice) and self._open_device is not None:
            self._open_device()
            self._open_device = None
            return Done(nonce=command.nonce)
        return Failed(nonce=command.nonce, kind="unsupported", error="Protocol", message="not a command of a runner")

    def _close_ring(self, ring: int) -> None:
        earlier = self._rings.pop(ring, None)
        if earlier is not None:
            earlier.close()

    def _map_ring(self, command: MapRing, fds: Sequence[int]) -> None:
        self._close_ring(command.ring)
        self._rings[command.ring] = Ring(command, fds, self._device)

    def _load_module(self, command: LoadModule) -> Reply:
        if command.interpreter:
            os.environ["TRITON_INTERPRET"] = "1"
        _pin(command.math)
        self._reference = command.role == "reference"
        self._name = "problem" if self._reference else "candidate"
        load_inline.install(self._channel, command.nonce)
        self._module = import_source(command.source, self._name)
        if not self._reference:
            compiling.announce(self._channel, lambda: self._nonce)
        wanted = ("Model", "get_inputs") if self._reference else ("ModelNew",)
        for name in wanted:
            if not callable(getattr(self._module, name, None)):
                raise WrongInterface(f"the module defines no {name}")
        return Done(nonce=command.nonce)

    def _construct(self, command: Construct, fds: Sequence[int]) -> Reply:
        assert self._module is not None
        self._dtype = DTYPES[command.dtype]
        self._wide = None
        if self._reference:
            self._set_sizes(command.sizes or {})
            _seed(command.seed)
            make = getattr(self._module, "get_init_inputs", None)
            self._init = list(make()) if make is not None else []
            tree, made = flatten(self._init, "get_init_inputs()")
            self._init_tensors = [tensor.to(self._device) for tensor in made]
            init = layout_of(tree, self._init_tensors)
            _seed(command.seed)
            model = self._module.Model(*self._init)
        else:
            init = None
            assert command.init is not None
            memory = Shared(fds[0], command.init.nbytes, self._device)
            # As the reference's get_init_inputs() gives them: on the host.
            tensors = [view.to("cpu", copy=True) for view in views(command.init, memory, 0)]
            _seed(command.seed)
            model = self._module.ModelNew(*unflatten(command.init.tree, tensors))
        if not isinstance(model, torch.nn.Module):
            raise WrongInterface(f"{'Model' if self._reference else 'ModelNew'} is not a torch.nn.Module")
        self._model = model.to(self._device, self._dtype).eval()
        self._call = self._model
        state = self._model.state_dict() if self._reference else {}
        self._state = [tensor.detach() for tensor in state.values()]
        tree, _ = flatten(list(self._state), "the reference's state")
        trainable = {name for name, _ in self._model.named_parameters()}
        return Constructed(
            nonce=command.nonce,
            init=init,
            names=tuple(state),
            parameters=tuple(name in trainable for name in state),
            weights=layout_of(tree, self._state),
        )

    def _set_sizes(self, sizes: dict[str, int]) -> None:
        """Override module constants, the earlier ones restored first."""
        assert self._module is not None
        vars(self._module).update(self._defaults)
        self._base = None
        self._defaults = {}
        for name, value in sizes.items():
            if name not in vars(self._module):
                raise ValueError(f"a declared shape names {name!r}, which is no constant of the problem's module")
            self._defaults[name] = vars(self._module)[name]
            vars(self._module)[name] = value

    def _load_weights(self, command: LoadWeights, fds: Sequence[int]) -> Reply:
        assert self._model is not None
        memory = Shared(fds[0], command.layout.nbytes, self._device)
        state = dict(zip(command.names, (v.clone() for v in views(command.layout, memory, 0)), strict=True))
        packer = getattr(self._model, "load_reference_state", None)
        if packer is not None:
            packer(state)
            return Done(nonce=command.nonce)
        own = self._model.state_dict()
        left = [name for name, tensor in state.items() if name not in own or own[name].shape != tensor.shape]
        for name, tensor in state.items():
            if name not in left:
                own[name].copy_(tensor)
        note = f"weights of the reference with no place in ModelNew: {', '.join(left)[:400]}" if left else ""
        return Done(nonce=command.nonce, note=note)

    def _make_inputs(self, command: MakeInputs) -> Reply:
        assert self._module is not None
        if command.vary_from is None:
            _seed(command.seed)
            made, what = list(self._module.get_inputs()), "get_inputs()"
        else:
            vary = getattr(self._module, "vary", None)
            if vary is None:
                return Failed(
                    nonce=command.nonce, kind="unsupported", error="Protocol", message="the problem has no vary"
                )
            if self._base is None or self._base[0] != command.vary_from:
                _seed(command.vary_from)
                self._base = (command.vary_from, list(self._module.get_inputs()))
            # A copy: it may write into what it is given.
            inputs, generator = copy.deepcopy(self._base[1]), torch.Generator().manual_seed(command.seed % (1 << 63))
            _seed(command.seed)
            made, what = list(vary(inputs, generator)), "vary(inputs, generator)"
        tree, tensors = flatten(made, what)
        self._pending_tensors = [
            _transform(t.to(self._device), self._dtype, command.scale, command.shift) for t in tensors
        ]
        self._pending = unflatten(tree, self._pending_tensors)
        return Described(nonce=command.nonce, layout=layout_of(tree, self._pending_tensors))

    def _forward(self, tree: Node, tensors: Sequence[torch.Tensor], precision: str) -> tuple[Any, list[torch.Tensor]]:
        """The model's result on copies of the tensors, and those copies, which the model may have changed."""
        assert self._model is not None
        if precision != "float64":
            copies = [tensor.clone() for tensor in tensors]
            return self._model(*unflatten(tree, copies)), copies
        if self._wide is None:
            self._wide = copy.deepcopy(self._model).to(torch.float64)
        copies = [_widen(tensor) for tensor in tensors]
        return self._wide(*unflatten(tree, copies)), copies

    def _outputs(
        self, tree: Node, tensors: Sequence[torch.Tensor], precision: str, mutated: Sequence[int]
    ) -> tuple[Node, list[torch.Tensor]]:
        result, after = self._forward(tree, tensors, precision)
        node, produced = flatten(result, "the reference's output")
        if not mutated:
            return node, produced
        leaves = tuple(TensorLeaf(len(produced) + k) for k in range(len(mutated)))
        return TupleNode((node, *leaves)), produced + [after[index] for index in mutated]

    def _describe(self, command: DescribeOutputs) -> Reply:
        tree, tensors = flatten(self._pending)
        node, produced = self._outputs(tree, tensors, command.precision, command.mutated)
        return Described(nonce=command.nonce, layout=layout_of(node, produced))

    def _run(self, command: Run) -> Reply:
        ring = self._rings[command.ring]
        call, arguments, store = self._call, ring.arguments, ring.store
        if ring.arena is not None:
            return self._run_in_arena(command, ring, ring.arena)
        if self._device.type == "cuda":
            call = checked(call)
        start = time.perf_counter_ns()
        for slot in command.slots:
            store(call(*arguments[slot]), slot)
        self._synchronize()
        return Done(nonce=command.nonce, claimed_ns=max(0, time.perf_counter_ns() - start))

    def _run_in_arena(self, command: Run, ring: Ring, arena: Arena) -> Reply:
        call, arguments, place, placed = self._call, ring.arguments, ring.place, Placed()
        with arena.using():
            start = time.perf_counter_ns()
            for slot in command.slots:
                place(call(*arguments[slot]), slot, placed)
        self._synchronize()
        claimed = max(0, time.perf_counter_ns() - start)
        # Until the answer is sent: what it takes to give them back is no part of the calls.
        self._held = placed.held
        return Done(nonce=command.nonce, claimed_ns=claimed, places=tuple(placed.places))

    def _replay(self, command: Replay) -> Reply:
        graph, _ = self._rings[command.ring].graphs[command.calls]
        start = time.perf_counter_ns()
        graph.replay()
        self._synchronize()
        return Done(nonce=command.nonce, claimed_ns=max(0, time.perf_counter_ns() - start))

    def _capture(self, command: CaptureCalls) -> Reply:
        ring = self._rings[command.ring]
        assert ring.arena is not None
        placed, graph = Placed(), torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, pool=ring.arena.identifier):
            for slot in range(command.calls):
                ring.place(self._call(*ring.arguments[slot]), slot, placed)
        ring.graphs[command.calls] = (graph, placed)
        return Done(nonce=command.nonce, places=tuple(placed.places))

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def _write_seed(self, command: WriteSeed) -> Reply:
        # Only here: what they import costs seconds.
        from kernelevo_evaluator.runner.inductor import CannotGenerate, generate
        from kernelevo_evaluator.runner.seed_source import module_source

        try:
            made = []
            for sizes in (None, *command.shapes):
                self._construct(Construct(nonce=command.nonce, dtype=command.dtype, seed=0, sizes=sizes), ())
                self._make_inputs(MakeInputs(nonce=command.nonce, seed=0))
                assert self._model is not None
                made.append(generate(self._model, self._pending))
            source = module_source(command.source, made, str(torch.__version__))
        except CannotGenerate as error:
            return SeedWritten(nonce=command.nonce, source="", reason=str(error)[:1000])
        return SeedWritten(nonce=command.nonce, source=source)

    def _run_expected(self, command: RunExpected) -> Reply:
        ring = self._rings[command.ring]
        tree, tensors = flatten(ring.arguments[command.slot])
        _, produced = self._outputs(tree, tensors, command.precision, ring.mutated)
        for view, tensor in zip(ring.expected[command.into], produced, strict=True):
            if view.shape != tensor.shape:
                raise WrongInterface(
                    f"the reference's output has shape {tuple(tensor.shape)}, before {tuple(view.shape)}"
                )
            view.copy_(tensor)
        return Done(nonce=command.nonce)


def _no_model(*_: Any) -> Any:
    raise RuntimeError("no model was constructed")


def _pin(math: str) -> None:
    """Set the switches that decide how float32 products are computed, as the problem's policy says."""
    allowed = math == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    try:
        import numpy as np
    except ImportError:
        return
    np.random.seed(seed % (1 << 32))


def _transform(tensor: torch.Tensor, dtype: torch.dtype, scale: float, shift: float) -> torch.Tensor:
    if not tensor.dtype.is_floating_point:
        return tensor
    result = tensor.to(dtype)
    if scale != 1.0 or shift != 0.0:
        result = result * scale + shift
    return result


def _widen(tensor: torch.Tensor) -> torch.Tensor:
    """A copy at double precision."""
    if tensor.dtype.is_floating_point:
        return tensor.to(torch.float64, copy=True)
    return tensor.to(torch.complex128) if tensor.dtype.is_complex else tensor.clone()
