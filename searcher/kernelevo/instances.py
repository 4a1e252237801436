"""A problem's text for a module or a function of the running program: how it is made, and what it is called with. Imports torch.

How a module was made is not kept by torch: it is read off its attributes, by the names of its constructor's parameters, and then
tried. What the class needs is taken out of its file as `kernelevo problem new` does.
"""

from __future__ import annotations

import ast
import copy
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from kernelevo.agreement import disagreement
from kernelevo_searcher.authoring import Wanted, write_problem
from kernelevo_searcher.inputs import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["inputs_text", "problem_text"]

_DTYPES = {
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float64: "float64",
}
_UNKNOWN = object()


@dataclass(frozen=True, slots=True)
class _Made:
    """A class, and the arguments of its constructor as text."""

    cls: type
    arguments: str


def problem_text(
    subject: Any,
    example_inputs: tuple[Any, ...],
    *,
    init: str | None = None,
    inputs: str | None = None,
    sizes: Mapping[str, int] | None = None,
    policy: Mapping[str, Any] | None = None,
) -> str:
    """The problem's file for a module (an instance) or a function.

    Args:
        example_inputs: what it is called with, by position: tensors, plain values, and lists, tuples and dicts of these.
        init: what the module was made with, as the arguments of a call; absent: read off its attributes.
        inputs: how inputs are made, likewise; absent: drawn at random, of the examples' shapes and dtypes.
        sizes, policy: as for `kernelevo problem new`.

    Raises:
        BadInput: no problem can be made of it; the message says why, and what to do.
    """
    inputs = inputs if inputs is not None else inputs_text(example_inputs)
    rules = {**_dtype_of(subject, example_inputs), **(policy or {})}
    if not isinstance(subject, torch.nn.Module):
        path, name = _place(subject)
        return write_problem(Wanted(path, name, inputs, sizes=sizes or {}, policy=rules))
    cls = type(subject)
    if isinstance(subject, torch.jit.ScriptModule):
        raise BadInput("a ScriptModule has no source that could be searched: pass the module that it was made of.")
    if _is_stock(cls):
        if sizes or init is not None:
            raise BadInput("init and sizes are for classes of your own.")
        arguments = _children(subject) if cls is torch.nn.Sequential else _arguments(subject)
        _try(subject, _Made(cls, arguments), example_inputs)
        return _stock_problem(cls, arguments, inputs, rules)
    path, name = _place(cls)
    arguments = init if init is not None else _arguments(subject)
    _try(subject, _Made(cls, arguments), example_inputs)
    return write_problem(Wanted(path, name, inputs, arguments or None, sizes=sizes or {}, policy=rules))


def inputs_text(example_inputs: tuple[Any, ...]) -> str:
    """Random inputs like the examples, as the arguments of a call: normal where one is negative, else uniform; whole numbers from
    the smallest to the largest that is there; plain values as they are."""
    return ", ".join(map(_value_text, example_inputs))


def _value_text(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return _tensor_text(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_value_text, value))}]"
    if type(value) is tuple:
        return f"({', '.join(map(_value_text, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_value_text(one)}" for key, one in value.items()) + "}"
    if value is None or type(value) in (bool, int, float, str):
        return repr(value)
    raise BadInput(
        f"an input of type {type(value).__name__} cannot be written down: say how inputs are made, by inputs='…'."
    )


def _tensor_text(tensor: Any) -> str:
    if tensor.layout is not torch.strided:
        raise BadInput("an example input is sparse; problems have dense ones.")
    shape = ", ".join(map(str, tensor.shape)) if tensor.dim() else "()"
    if tensor.dtype is torch.bool:
        return f"torch.rand({shape}) < 0.5"
    if tensor.dtype.is_complex:
        return f"torch.randn({shape}, dtype={tensor.dtype})"
    if tensor.dtype.is_floating_point:
        # The policy's dtype is what they are cast to.
        return f"torch.{'randn' if tensor.numel() and bool((tensor < 0).any()) else 'rand'}({shape})"
    low, high = (int(tensor.min()), int(tensor.max())) if tensor.numel() else (0, 0)
    size = f"({shape}{',' if tensor.dim() == 1 else ''})" if tensor.dim() else "()"
    return f"torch.randint({low}, {high + 1}, {size}, dtype={tensor.dtype})"


def _dtype_of(subject: Any, example_inputs: tuple[Any, ...]) -> dict[str, str]:
    tensors = [one for one in torch.utils._pytree.tree_leaves(example_inputs) if isinstance(one, torch.Tensor)]
    if isinstance(subject, torch.nn.Module):
        tensors += subject.state_dict().values()
    found = {one.dtype for one in tensors if one.dtype.is_floating_point}
    if len(found) > 1:
        raise BadInput(
            f"inputs and weights are of several dtypes ({', '.join(sorted(map(str, found)))}); a problem has one."
        )
    dtype = next(iter(found), torch.float32)
    if dtype not in _DTYPES:
        raise BadInput(f"a problem of {dtype} is not supported; there are {', '.join(_DTYPES.values())}.")
    return {"dtype": _DTYPES[dtype]} if dtype is not torch.float32 else {}


# How it is made.


def _is_stock(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "torch" and getattr(torch.nn, cls.__name__, None) is cls


def _place(subject: Callable[..., Any]) -> tuple[Path, str]:
    """The file that defines it, and its name there."""
    name = getattr(subject, "__qualname__", "")
    try:
        path = inspect.getsourcefile(subject)
    except TypeError:
        path = None
    if path is None or not Path(path).is_file():
        raise BadInput(f"the source of {name or subject!r} is in no file: what is searched must be read from one.")
    if not name.isidentifier():
        raise BadInput(
            f"{name} lies inside of something else: only what stands at the top level of a file can be taken."
        )
    return Path(path), name


def _arguments(module: Any) -> str:
    """The constructor's arguments as the attributes of their names say: by position as long as none is left out, then by name."""
    cls = type(module)
    said: list[str] = []
    by_name = _is_stock(cls)
    for name, parameter in inspect.signature(cls.__init__).parameters.items():
        if name == "self" or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        value = getattr(module, name, _UNKNOWN)
        if name == "bias" and (value is None or isinstance(value, torch.Tensor)):
            value = value is not None
        if not _is_plain(value) and parameter.default is parameter.empty:
            raise BadInput(
                f"what this {cls.__name__} was made with is not to be seen: it has no plain attribute {name}. Say it: init='…', "
                "as the arguments of a call."
            )
        if not _is_plain(value) or (parameter.default is not parameter.empty and value == parameter.default):
            by_name = True
        else:
            said.append(f"{name}={value!r}" if by_name or parameter.kind is parameter.KEYWORD_ONLY else repr(value))
    return ", ".join(said)


def _is_plain(value: object) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str)


def _children(sequence: Any) -> str:
    parts = []
    for place, (name, child) in enumerate(sequence.named_children()):
        cls = type(child)
        if name != str(place) or not _is_stock(cls):
            raise BadInput(
                f"the Sequential's part {name} is a {cls.__name__} or has a name of its own: put what it does into a class of "
                "yours."
            )
        inner = _children(child) if cls is torch.nn.Sequential else _arguments(child)
        parts.append(f"torch.nn.{cls.__name__}({inner})")
    return ", ".join(parts)


def _try(module: Any, made: _Made, example_inputs: tuple[Any, ...]) -> None:
    """Make it once more, and see whether it is the same.

    Raises:
        BadInput: it is not, or cannot be made so.
    """
    name = made.cls.__name__
    if any(isinstance(one, ast.Starred) for one in ast.walk(ast.parse(f"f({made.arguments})"))):
        return
    scope = {**vars(inspect.getmodule(made.cls) or torch), "torch": torch}
    advice = f"Say what it was made with: init='…', as the arguments of a call to {name}."
    try:
        with torch.random.fork_rng():
            again = eval(f"_made({made.arguments})", {**scope, "_made": made.cls})  # noqa: S307 - a call of the user's own class
    except Exception as error:
        raise BadInput(f"{name}({made.arguments}) raises {type(error).__name__}: {error}. {advice}") from error
    mine, other = module.state_dict(), again.state_dict()
    if {key: one.shape for key, one in mine.items()} != {key: one.shape for key, one in other.items()}:
        raise BadInput(f"{name}({made.arguments}) has other weights than this one. {advice}")
    again.load_state_dict(mine)
    reference = next((one for one in mine.values() if one.dtype.is_floating_point), None)
    if reference is not None:
        again.to(device=reference.device, dtype=reference.dtype)
    again.eval()
    with torch.no_grad(), torch.random.fork_rng():
        was = copy.deepcopy(module).eval()
        why = disagreement(was(*copy.deepcopy(example_inputs)), again(*copy.deepcopy(example_inputs)), {})
    if why:
        raise BadInput(f"{name}({made.arguments}) computes something else than this one ({why}). {advice}")


def _stock_problem(cls: type, arguments: str, inputs: str, policy: Mapping[str, Any]) -> str:
    literal = f"KERNELEVO = {dict(policy)!r}\n\n\n" if policy else "\n"
    return (
        f'"""{cls.__name__} of torch."""\n\nimport torch\n\n{literal}'
        f"class Model(torch.nn.{cls.__name__}):\n    def __init__(self):\n        super().__init__({arguments})\n\n\n"
        f"def get_inputs():\n    return [{inputs}]\n\n\ndef get_init_inputs():\n    return []\n"
    )
