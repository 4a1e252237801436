"""A kernel in the place of a module or a function of the running program, checked against the original where it is called.

The kernel runs only where it may: on inputs of a kind on which it has agreed with the original, in eval mode, where nobody wants
gradients. Everywhere else the original runs, and a warning says why, once. Imports torch.
"""

from __future__ import annotations

import copy
import functools
import importlib.util
import inspect
import sys
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree

from kernelevo.agreement import disagreement

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from kernelevo.agreement import Allowed
    from kernelevo_api.types import Ratio

__all__ = ["Kernel", "OptimizedFunction", "put_in_place"]

_KINDS = 4096
"""Kinds of inputs remembered; more than that are checked anew."""


class Kernel:
    """What stands behind an optimized module or function: its attribute `kernelevo`.

    Args:
        path: the kernel's file; run in this process.
        init: arguments of `ModelNew`.
        allowed: how far its outputs may be from the original's, by their place.
        speedup: as it was verified; absent where none was proved.
        run: folder of the run that found it.
        check_every: so many calls of a kind apart, the kernel is checked again; 0: only at the first.
        why: not to use it at all; empty otherwise.
    """

    def __init__(
        self,
        path: Path | None,
        init: Sequence[Any],
        allowed: Mapping[int, Allowed],
        *,
        speedup: Ratio | None,
        run: Path,
        check_every: int = 0,
        why: str = "",
    ) -> None:
        self.path = path
        self.speedup = speedup
        self.run = run
        self.why = why
        """Why the original runs instead, whatever the inputs; empty while the kernel is in use."""
        self.calls = 0
        """Answered by the kernel."""
        self._init = init
        self._allowed = allowed
        self._check_every = check_every
        self._checked: dict[Any, str] = {}
        self._since: dict[Any, int] = {}
        self._said: set[str] = set()
        self._instance: Any = None
        self._bound: list[tuple[dict[str, Any], str, dict[str, Any], str]] = []
        self._stamp: tuple[Any, ...] | None = None

    @property
    def active(self) -> bool:
        """Whether the kernel is in use."""
        return not self.why

    @property
    def module(self) -> Any:
        """The kernel itself, an instance of `ModelNew`: without checks, and without what they cost. None before its first
        call."""
        return self._instance

    @property
    def failed_checks(self) -> tuple[str, ...]:
        """Why it did not agree with the original, for each kind of inputs on which it did not."""
        return tuple(why for why in self._checked.values() if why)

    def again(self) -> Kernel:
        """The same kernel for another module: nothing is checked yet."""
        return Kernel(
            self.path,
            self._init,
            self._allowed,
            speedup=self.speedup,
            run=self.run,
            check_every=self._check_every,
            why=self.why,
        )

    def call(self, module: Any, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One call: by the kernel where it may, by the original elsewhere.

        Args:
            module: that the weights are of; None for a function.
        """
        why = self.why or self._kept_out(module, args, kwargs)
        if not why:
            args, kwargs, why = _positional(original, args, kwargs)
        if why:
            return self._by_original(why, original, args, kwargs)
        if self._instance is None:
            try:
                self._make(module, args)
            except Exception as error:  # it is anybody's code
                self.why = f"the kernel cannot be loaded here ({type(error).__name__}: {error})"
                return self._by_original(self.why, original, args, kwargs)
        self._follow_weights(module)
        kind = self._kind(args)
        known = self._checked.get(kind)
        if known is not None and not known and self._is_due(kind):
            known = None
        if known is None:
            return self._check(kind, original, args)
        if known:
            return original(*args)
        self.calls += 1
        return self._instance(*args)

    # Where it may run.

    def _kept_out(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        if module is not None and module.training:
            return "the module is in training mode: call .eval() on it"
        if torch.is_grad_enabled():
            tensors = [one for one in _pytree.tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
            weights = module.parameters() if module is not None else ()
            if any(one.requires_grad for one in (*tensors, *weights)):
                return "gradients are wanted: call it within torch.no_grad() or torch.inference_mode()"
        return ""

    def _by_original(
        self, why: str, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self.say(f"the original runs, not the kernel: {why}")
        return original(*args, **kwargs)

    def say(self, what: str) -> None:
        """Warn of this, once."""
        if what not in self._said:
            self._said.add(what)
            warnings.warn(f"kernelevo: {what}", stacklevel=5)

    # The check.

    def _kind(self, args: tuple[Any, ...]) -> Any:
        """What makes inputs of one kind: arrangement, shapes, strides, dtypes and devices, plain values, and weights' dtypes."""
        leaves, arranged = _pytree.tree_flatten(args)
        inputs = tuple(
            (one.shape, one.stride(), one.dtype, one.device)
            if isinstance(one, torch.Tensor)
            else (type(one), repr(one))
            for one in leaves
        )
        weights = tuple((mine[name].dtype, mine[name].device) for mine, name, _, _ in self._bound)
        return str(arranged), inputs, weights

    def _is_due(self, kind: Any) -> bool:
        if not self._check_every:
            return False
        self._since[kind] = self._since.get(kind, 0) + 1
        return self._since[kind] % self._check_every == 0

    def _check(self, kind: Any, original: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """The original's answer, and whether the kernel's is the same."""
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return self._by_original("a CUDA graph is captured before a first call was checked", original, args, {})
        copies = _pytree.tree_map(lambda one: one.clone() if isinstance(one, torch.Tensor) else one, args)
        try:
            got = self._instance(*copies)
        except Exception as error:  # it is anybody's code
            answer = original(*args)
            why = f"it raised {type(error).__name__}: {error}"
        else:
            answer = original(*args)
            why = disagreement(answer, got, self._allowed)
        if len(self._checked) >= _KINDS:
            self._checked.clear()
        self._checked[kind] = why
        if why:
            self.say(f"the original runs, not the kernel, on inputs such as {_shown(args)}: {why}")
        return answer

    # The weights.

    def _make(self, module: Any, args: tuple[Any, ...]) -> None:
        assert self.path is not None
        made = _loaded(self.path)
        with torch.random.fork_rng():
            instance = made.ModelNew(*copy.deepcopy(list(self._init)))
        state = module.state_dict(keep_vars=True) if module is not None else {}
        tensors = [one for one in (*state.values(), *_pytree.tree_leaves(args)) if isinstance(one, torch.Tensor)]
        floating = next((one.dtype for one in tensors if one.dtype.is_floating_point), None)
        instance = instance.to(device=tensors[0].device if tensors else None, dtype=floating).eval()
        for one in instance.parameters():
            one.requires_grad_(False)
        if not hasattr(instance, "load_reference_state"):
            self._bound = _bindings(instance, module, state)
        self._instance = instance

    def _follow_weights(self, module: Any) -> None:
        """The kernel reads the module's own weights, whatever became of them since the last call."""
        for mine, name, theirs, their_name in self._bound:
            if mine[name] is not theirs[their_name]:
                mine[name] = theirs[their_name]
        if module is not None and hasattr(self._instance, "load_reference_state"):
            state = module.state_dict(keep_vars=True)
            stamp = tuple((one.data_ptr(), one._version) for one in state.values())
            if stamp != self._stamp:
                self._instance.load_reference_state({name: one.detach() for name, one in state.items()})
                self._stamp = stamp


def put_in_place(module: Any, kernel: Kernel) -> Any:
    """A module like this one, with its weights (the very same), its class and its hooks, that calls the kernel.

    It is told apart by its attribute `kernelevo`. A copy of it has weights and checks of its own; pickled, it is the original.
    """
    cls: Any = type(module)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.kernelevo.call(self, functools.partial(cls.forward, self), args, kwargs)

    def plain(self: Any) -> Any:
        bare = cls.__new__(cls)
        bare.__dict__.update({name: value for name, value in self.__dict__.items() if name != "kernelevo"})
        return bare

    def deepcopy(self: Any, memo: dict[int, Any]) -> Any:
        return put_in_place(copy.deepcopy(plain(self), memo), self.kernelevo.again())

    def reduce(self: Any, protocol: Any) -> Any:
        # As an instance of the original class: who reads it needs nothing of ours.
        state = plain(self).__reduce_ex__(protocol)[2]
        return object.__new__, (cls,), state

    body = {
        "forward": functools.wraps(cls.forward)(forward),
        "__deepcopy__": deepcopy,
        "__reduce_ex__": reduce,
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
    }
    made = cls.__new__(cls)
    made.__dict__.update(module.__dict__)
    made.__class__ = type(cls.__name__, (cls,), body)
    made.__dict__["kernelevo"] = kernel
    return made


class OptimizedFunction:
    """A function that calls the kernel; otherwise as the original."""

    def __init__(self, original: Callable[..., Any], kernel: Kernel) -> None:
        functools.update_wrapper(self, original)
        self.kernelevo = kernel
        self._original = original

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.kernelevo.call(None, self._original, args, kwargs)


def _positional(
    original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], str]:
    """The arguments by position, as kernels are called; or why that cannot be."""
    if not kwargs:
        return args, {}, ""
    try:
        bound = inspect.signature(original).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return args, kwargs, "its arguments cannot be told"
    if bound.kwargs:
        return args, kwargs, f"it is called with {', '.join(bound.kwargs)} by keyword"
    return bound.args, {}, ""


def _bindings(
    instance: Any, module: Any, state: dict[str, Any]
) -> list[tuple[dict[str, Any], str, dict[str, Any], str]]:
    """Where the kernel keeps a weight, and where the module does, for each of equal name and shape."""
    found = []
    for name, tensor in state.items():
        prefix, _, leaf = name.rpartition(".")
        try:
            mine = instance.get_submodule(prefix)
        except AttributeError:
            continue
        theirs = module.get_submodule(prefix)
        for store in (mine._parameters, mine._buffers):
            if store.get(leaf) is not None and store[leaf].shape == tensor.shape:
                found.append((store, leaf, theirs._parameters if leaf in theirs._parameters else theirs._buffers, leaf))
    return found


def _loaded(path: Path) -> Any:
    name = f"kernelevo_kernel_{abs(hash(path.resolve())):x}"
    if name in sys.modules and sys.modules[name].__file__ == str(path):
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _shown(args: tuple[Any, ...]) -> str:
    leaves = _pytree.tree_leaves(args)
    return ", ".join(
        f"{str(one.dtype).removeprefix('torch.')}{list(one.shape)}" if isinstance(one, torch.Tensor) else repr(one)[:40]
        for one in leaves[:8]
    )
