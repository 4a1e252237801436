"""Writes a problem's file for a function or a module that stands in somebody's own code.

The file is self-contained: it holds what the definition needs, a `Model` around it, its inputs and the `KERNELEVO` literal.
Nothing is run here; what only running shows is the audit's to find.
"""

from __future__ import annotations

import ast
import pprint
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kernelevo_searcher.closure import SourceFile, used_names
from kernelevo_searcher.inputs import BadInput, read_text

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence
    from pathlib import Path

__all__ = ["Arguments", "Wanted", "write_problem"]

_OURS = ("Model", "get_inputs", "get_init_inputs", "KERNELEVO")
_LARGEST = 100
"""Columns of the literal."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a problem is to be made of.

    `inputs` and `init` are written as the arguments of a call, e.g. `torch.randn(8, 16), scale=0.5`; or they name a function of
    the file that returns the arguments. Where they are absent the file's own `get_inputs` and `get_init_inputs` are taken.
    """

    path: Path
    name: str
    """Of the function or class, at the top level of the file."""
    inputs: str | None = None
    init: str | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Module constants that the inputs are written with, so that `shapes` can change them."""
    policy: Mapping[str, Any] = field(default_factory=dict)
    """For `KERNELEVO`; over what the file's own literal says."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a call, as they were written."""

    positional: tuple[ast.expr, ...] = ()
    keywords: tuple[tuple[str, ast.expr], ...] = ()
    function: str = ""
    """A function that gives them, in place of the above."""

    @staticmethod
    def parse(text: str, what: str, source: SourceFile) -> Arguments:
        """
        Raises:
            BadInput: these are no arguments of a call.
        """
        try:
            call = ast.parse(f"f({text}\n)", mode="eval").body
        except SyntaxError as error:
            raise BadInput(f"{what} {text!r} cannot be read as the arguments of a call: {error.msg}.") from error
        if not isinstance(call, ast.Call) or any(isinstance(one, ast.Starred) for one in call.args):
            raise BadInput(f"{what} {text!r} cannot be read as the arguments of a call.")
        if any(keyword.arg is None for keyword in call.keywords):
            raise BadInput(f"{what} {text!r} has **arguments: name each.")
        if len(call.args) == 1 and not call.keywords and isinstance(call.args[0], ast.Name):
            named = source.definition(call.args[0].id)
            if isinstance(named, ast.FunctionDef):
                return Arguments(function=named.name)
        args = call.args
        if len(args) == 1 and not call.keywords and isinstance(args[0], ast.List):
            # As `get_inputs` would return them.
            args = args[0].elts
        return Arguments(tuple(args), tuple((str(one.arg), one.value) for one in call.keywords))

    @property
    def names(self) -> set[str]:
        """What they need of the file."""
        if self.function:
            return {self.function}
        return {name for one in (*self.positional, *(value for _, value in self.keywords)) for name in used_names(one)}

    @property
    def values(self) -> tuple[ast.expr, ...]:
        """All of them, those with keywords last."""
        return (*self.positional, *(value for _, value in self.keywords))

    def call(self) -> str:
        """As they stand between the brackets of a call."""
        return ", ".join(
            [*map(ast.unparse, self.positional), *(f"{name}={ast.unparse(value)}" for name, value in self.keywords)]
        )


def write_problem(wanted: Wanted) -> str:
    """The text of the problem's file.

    Raises:
        BadInput: there is no such definition, or it cannot be made one file; the message says why.
    """
    source = SourceFile(wanted.path, read_text(wanted.path, "the file"))
    node = _definition(source, wanted)
    for name in wanted.sizes:
        if name in source.binds:
            raise BadInput(
                f"{wanted.path} defines {name} already: leave out --size {name}, its value is taken as it is."
            )
    inputs = _arguments(wanted.inputs, "get_inputs", "the inputs", source)
    if inputs is None:
        raise BadInput(
            f"say what {wanted.name} is called with: --inputs 'torch.randn(64, 128)', or --inputs and the name of a function "
            "in the file that returns the arguments."
        )
    init = _arguments(wanted.init, "get_init_inputs", "the constructor's arguments", source)
    if isinstance(node, ast.FunctionDef) and wanted.init is not None:
        raise BadInput(f"{wanted.name} is a function: it has no constructor, leave out --init.")
    roots = {wanted.name, *inputs.names, *(init.names if init is not None else ())}
    roots |= {"vary"} if isinstance(source.definition("vary"), ast.FunctionDef) else set()
    taken, defined = source.needed(roots)
    parts = _around(node, inputs, init or Arguments(), source, defined, wanted)
    literal = source.literal("KERNELEVO")
    policy = {**(literal if isinstance(literal, dict) else {}), **wanted.policy}
    return _assemble(node, wanted, taken, parts, policy)


def _definition(source: SourceFile, wanted: Wanted) -> ast.FunctionDef | ast.ClassDef:
    if "." in wanted.name:
        raise BadInput(
            f"{wanted.name} lies inside of something else: only what stands at the top level of a file can be taken."
        )
    node = source.definition(wanted.name)
    if isinstance(node, ast.ClassDef):
        return node
    if isinstance(node, ast.FunctionDef):
        if any(isinstance(one, ast.Yield | ast.YieldFrom) for one in ast.walk(node)):
            raise BadInput(f"{wanted.name} is a generator; a problem's reference returns tensors.")
        return node
    if isinstance(node, ast.AsyncFunctionDef):
        raise BadInput(f"{wanted.name} is an async function; a problem's reference is a plain one.")
    if node is not None:
        raise BadInput(f"{wanted.name} is neither a function nor a class (line {node.lineno} of {wanted.path}).")
    there = [name for name in source.binds if isinstance(source.definition(name), ast.FunctionDef | ast.ClassDef)]
    raise BadInput(
        f"{wanted.path} defines no {wanted.name} at its top level; it has {', '.join(there) or 'no function or class'}."
    )


def _arguments(text: str | None, default: str, what: str, source: SourceFile) -> Arguments | None:
    if text is not None:
        return Arguments.parse(text, what, source)
    return Arguments(function=default) if isinstance(source.definition(default), ast.FunctionDef) else None


def _around(
    node: ast.FunctionDef | ast.ClassDef,
    inputs: Arguments,
    init: Arguments,
    source: SourceFile,
    defined: frozenset[str],
    wanted: Wanted,
) -> list[str]:
    """`Model`, `get_inputs` and `get_init_inputs`, those that the file does not have itself."""
    parts: list[str] = []
    constants = {*wanted.sizes, *(name for name in source.binds if source.literal(name) is not None)}
    # What a candidate's constructor can be given; anything else is made inside of Model.
    plain = init.function == "get_init_inputs" or (
        not init.function and not init.keywords and all(_is_plain(one, constants) for one in init.positional)
    )
    if isinstance(node, ast.FunctionDef):
        parts.append(_model_of_function(node, inputs))
    elif node.name != "Model":
        parts.append(_model_of_class(node, inputs, init if not plain else Arguments()))
    elif inputs.keywords or not plain:
        raise BadInput(
            "a class that is called Model is taken as it is: its arguments must be positional, and those of its constructor "
            "plain values. Give it another name."
        )
    if inputs.function != "get_inputs":
        parts.append(_getter("get_inputs", inputs))
    if init.function != "get_init_inputs":
        parts.append(_getter("get_init_inputs", init if plain else Arguments()))
    own = {name for name in _OURS if any(part.startswith((f"class {name}(", f"def {name}(")) for part in parts)}
    clash = sorted(own & defined)
    if clash:
        raise BadInput(
            f"{wanted.path} has a {' and a '.join(clash)} of its own that {wanted.name} or its arguments use: give it "
            "another name."
        )
    return parts


def _is_plain(value: ast.expr, constants: Container[str]) -> bool:
    """Whether this is made of numbers and texts, and of names of such."""
    if isinstance(value, ast.List | ast.Tuple):
        return all(_is_plain(one, constants) for one in value.elts)
    if isinstance(value, ast.UnaryOp):
        return _is_plain(value.operand, constants)
    if isinstance(value, ast.BinOp):
        return _is_plain(value.left, constants) and _is_plain(value.right, constants)
    return isinstance(value, ast.Constant) or (isinstance(value, ast.Name) and value.id in constants)


def _model_of_function(node: ast.FunctionDef, inputs: Arguments) -> str:
    parameters, call = _parameters(node.args, inputs, node.name)
    return f"class Model(torch.nn.Module):\n    def forward(self, {parameters}):\n        return {node.name}({call})"


def _model_of_class(node: ast.ClassDef, inputs: Arguments, init: Arguments) -> str:
    """A class of its own, so that a candidate may derive from `Model` and a module can be built from no arguments."""
    methods = []
    if init.values:
        methods.append(f"    def __init__(self):\n        super().__init__({init.call()})")
    elif init.function:
        methods.append(
            f"    def __init__(self):\n        made = {init.function}()\n"
            "        super().__init__(*(made if isinstance(made, (list, tuple)) else [made]))"
        )
    if inputs.keywords:
        names = _forward_names(node, len(inputs.positional))
        given = [*names, *(f"{name}={name}" for name, _ in inputs.keywords)]
        every = ", ".join([*names, *(name for name, _ in inputs.keywords)])
        methods.append(f"    def forward(self, {every}):\n        return super().forward({', '.join(given)})")
    return f"class Model({node.name}):\n" + ("\n\n".join(methods) or "    pass")


def _forward_names(node: ast.ClassDef, count: int) -> list[str]:
    """Names for that many positional arguments: those of the class's own `forward` where it has one."""
    own = next((one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "forward"), None)
    named = [one.arg for one in (*own.args.posonlyargs, *own.args.args)][1:] if own is not None else []
    return [named[place] if place < len(named) else f"input{place}" for place in range(count)]


def _parameters(arguments: ast.arguments, inputs: Arguments, whose: str) -> tuple[str, str]:
    """The parameters of `forward`, and the call that hands them on."""
    keywords = [name for name, _ in inputs.keywords]
    missing = [
        one.arg
        for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if default is None and one.arg not in keywords
    ]
    if missing:
        raise BadInput(f"{whose} needs {', '.join(missing)} by keyword: write {missing[0]}=… in --inputs.")
    positional = [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
    if inputs.function:
        # How many it gives is known when it runs.
        return "*arguments", "*arguments"
    given = len(inputs.positional)
    names = positional[:given]
    if given > len(names):
        if arguments.vararg is None:
            raise BadInput(f"{whose} takes {len(positional)} positional arguments; --inputs has {given}.")
        names += [f"{arguments.vararg.arg}{place}" for place in range(given - len(names))]
    unset = positional[given : len(positional) - len(arguments.defaults)]
    lacking = [name for name in unset if name not in keywords]
    if lacking:
        raise BadInput(f"{whose} needs {', '.join(lacking)} too; --inputs has {given + len(keywords)} arguments.")
    return ", ".join([*names, *keywords]), ", ".join([*names, *(f"{name}={name}" for name in keywords)])


def _getter(name: str, arguments: Arguments) -> str:
    if arguments.function:
        return (
            f"def {name}():\n    made = {arguments.function}()\n"
            "    return list(made) if isinstance(made, (list, tuple)) else [made]"
        )
    return f"def {name}():\n    return [{', '.join(map(ast.unparse, arguments.values))}]"


def _assemble(
    node: ast.FunctionDef | ast.ClassDef, wanted: Wanted, taken: str, parts: Sequence[str], policy: dict[str, Any]
) -> str:
    said = (ast.get_docstring(node) or "").strip().partition("\n")[0] or f"{wanted.name} of {wanted.path.name}."
    future, body = _without_future(taken)
    head = ['"""' + said.replace("\\", "\\\\").replace('"', "'") + '"""']
    head += [future] if future else []
    imports = [line for line in ("import torch",) if not _imports_torch(taken)]
    constants = [f"{name} = {value}" for name, value in wanted.sizes.items()]
    if policy:
        literal = pprint.pformat(policy, width=_LARGEST, sort_dicts=False)
        constants.append("KERNELEVO = " + (literal.replace("'", '"') if '"' not in literal else literal))
    blocks = ["\n".join(imports), body, "\n".join(constants), *parts]
    head_text = "\n\n".join(head)
    text = f"{head_text}\n\n" + "\n\n\n".join(block for block in blocks if block) + "\n"
    compile(text, "problem.py", "exec", dont_inherit=True)
    return text


def _without_future(text: str) -> tuple[str, str]:
    """Imports from `__future__`, which must stand first, and the rest."""
    tree, lines = ast.parse(text), text.splitlines()
    future: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            for place in range(node.lineno - 1, node.end_lineno or node.lineno):
                future.append(lines[place])
                lines[place] = ""
    return "\n".join(future), "\n".join(lines).strip("\n")


def _imports_torch(text: str) -> bool:
    return any(
        isinstance(node, ast.Import)
        and any(alias.name.partition(".")[0] == "torch" and not alias.asname for alias in node.names)
        for node in ast.parse(text).body
    )
