"""A candidate's module out of the reference's source and what Inductor generated for it: text in, text out.

The class derives from the reference, so that construction and the names of weights are its own; `forward` is the generated
code for the sizes that it was made for, and the reference's elsewhere. Of Inductor's module stay the kernels, the function that
calls them, and what these name.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernelevo_evaluator.runner.inductor import CannotGenerate
from kernelevo_evaluator.runner.seed_kernels import plain_kernel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from kernelevo_evaluator.runner.inductor import Generated
    from kernelevo_evaluator.runner.seed_kernels import PlainKernel

_DROPPED = frozenset({"get_inputs", "get_init_inputs", "vary", "KERNELEVO"})
"""Of the problem: what only the evaluator reads."""
_CONSTANT_ELEMENTS = 4096
_COMPILER_FLAGS = (
    "-std=c++20",
    "-O3",
    "-march=native",
    "-fopenmp",
    "-ffast-math",
    "-fno-finite-math-only",
    "-fno-unsafe-math-optimizations",
    "-ffp-contract=off",
)
"""As Inductor compiles its own C++."""
_EXTERN = {
    "mm": "torch.mm",
    "addmm": "torch.addmm",
    "bmm": "torch.bmm",
    "baddbmm": "torch.baddbmm",
    "convolution": "torch.convolution",
    "bias_addmm": "_bias_addmm",
}
"""What `extern_kernels` are: the module that holds them takes seconds to import."""
_BIAS_ADDMM = """\
def _bias_addmm(bias, a, b, *, out=None, alpha=1, beta=1):
    one = bias.size(0) == 1 or (bias.stride(0) == 0 and bias.size(0) != 0)
    return torch.addmm(bias[0] if one else bias, a, b, out=out, alpha=alpha, beta=beta)
"""
_LAUNCHER = """\
def _kernel(name, *types):
    function = getattr(_library, name)
    function.argtypes, function.restype = types, None
    return lambda *values: function(*[v.data_ptr() if isinstance(v, torch.Tensor) else v for v in values])
"""
_LEAVES = """\
def _leaves(value):
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in _leaves(item)]
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in _leaves(item)]
    return [value]
"""


@dataclass(slots=True)
class _Parts:
    """What the modules of all sizes come to."""

    preamble: dict[str, None] = field(default_factory=dict)
    """Imports and assignments, in order, each once."""
    cpp: list[str] = field(default_factory=list)
    launchers: list[str] = field(default_factory=list)
    triton: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    extern: set[str] = field(default_factory=set)


def module_source(problem: str, generated: Sequence[Generated], torch_version: str) -> str:
    """The candidate's module.

    Args:
        problem: source of the reference.
        generated: one for each set of sizes, the problem's own first.

    Raises:
        CannotGenerate: something in the generated code does not stand on its own.
    """
    keys = [one.key for one in generated]
    if len(set(keys)) != len(keys):
        raise CannotGenerate("two declared sizes have inputs of equal shapes: the inputs do not tell them apart")
    parts = _Parts()
    for number, one in enumerate(generated):
        _add(parts, one, f"_{number}" if len(generated) > 1 else "", timed=number == 0)
    lines = [f'"""What TorchInductor {torch_version} generates for the reference."""', ""]
    lines += ["import torch", *parts.preamble, ""]
    if parts.extern:
        if "bias_addmm" in parts.extern:
            lines += [_BIAS_ADDMM]
        names = ", ".join(f"{name}={_EXTERN[name]}" for name in sorted(parts.extern))
        lines += [f"extern_kernels = types.SimpleNamespace({names})", ""]
    if parts.cpp:
        lines += [_library(parts.cpp, generated[0].compiler_flags), _LAUNCHER, *parts.launchers, ""]
    lines += [*parts.triton, *parts.calls, _without_inputs(problem), "", _LEAVES, "", _model(generated)]
    source = "\n".join(lines)
    ast.parse(source)
    return source


def _add(parts: _Parts, one: Generated, suffix: str, *, timed: bool) -> None:
    tree = ast.parse(one.wrapper)
    kernels: dict[str, ast.Call] = {}
    call: ast.FunctionDef | None = None
    rest: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and isinstance(node.targets[0], ast.Name):
            method = ast.unparse(node.value.func)
            if method.startswith("async_compile."):
                kernels[node.targets[0].id] = node.value
                continue
        if isinstance(node, ast.ClassDef) and node.name == "Runner":
            call = next(item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "call")
            call.args.args = call.args.args[1:]
        elif isinstance(node, ast.FunctionDef) and node.name == "call":
            call = node
        elif isinstance(node, ast.Import | ast.ImportFrom | ast.Assign):
            rest.append(node)
    if call is None:
        raise CannotGenerate("the generated module has no function `call`")
    renamed = {name: f"{name}{suffix}" for name in kernels}
    plain = {
        name: found for name, kernel in kernels.items() if (found := _plain(kernel, name, renamed[name], timed=timed))
    }
    _Launches(plain, all_plain=len(plain) == len(kernels)).visit(call)
    body = _rename(ast.unparse(call), renamed)
    if re.search(r"\bself\b|\bpartitions\b", body):
        raise CannotGenerate("the generated module is cut in partitions")
    body = body.replace("def call(args)", f"def _call{suffix}(args)", 1)
    for name, value in one.constants.items():
        renamed[name] = f"{name}{suffix}"
        parts.calls.append(f"{name}{suffix} = {_literal(value)}")
    body = _rename(body, renamed)
    for name, kernel in kernels.items():
        if name in plain:
            parts.triton.append(f"{plain[name].source}\n\n")
            parts.preamble.update(dict.fromkeys(plain[name].imports))
        else:
            _add_kernel(parts, kernel, name, renamed[name])
    extern = set(re.findall(r"\bextern_kernels\.(\w+)", body))
    own_extern = extern <= set(_EXTERN)
    if own_extern:
        parts.extern |= extern
        if extern:
            parts.preamble.setdefault("import types")
    for text in _needed(rest, body, skip={"extern_kernels"} if own_extern else set(), known=set(one.constants)):
        parts.preamble.setdefault(text)
    parts.calls.append(f"{body}\n\n")


def _plain(kernel: ast.Call, name: str, new: str, *, timed: bool) -> PlainKernel | None:
    if ast.unparse(kernel.func) != "async_compile.triton":
        return None
    try:
        inner, text = (ast.literal_eval(argument) for argument in kernel.args[:2])
    except ValueError:
        return None
    return plain_kernel(text, inner, new, _names(ast.parse(text), name, inner, new), timed=timed)


class _Launches(ast.NodeTransformer):
    """Launches of plain kernels by Triton itself: `kernel[grid](...)` for Inductor's `kernel.run(..., stream=stream0)`."""

    def __init__(self, plain: Mapping[str, PlainKernel], *, all_plain: bool) -> None:
        self._plain = plain
        self._all_plain = all_plain

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Rewrite a launch."""
        function = node.func
        if not (
            isinstance(function, ast.Attribute) and function.attr == "run" and isinstance(function.value, ast.Name)
        ):
            return self.generic_visit(node)
        kernel = self._plain.get(function.value.id)
        if kernel is None:
            return node
        if len(node.args) != kernel.arguments or [keyword.arg for keyword in node.keywords] != ["stream"]:
            raise CannotGenerate(f"the kernel {kernel.name} is launched in a way that is not known")
        launch = ast.parse(f"{kernel.name}[{kernel.name}_grid](**{kernel.name}_launch)", mode="eval").body
        assert isinstance(launch, ast.Call)
        launch.args = node.args
        return launch

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        """Leave out the stream where no launch names it any more."""
        if self._all_plain and isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "get_raw_stream":
            return None
        return self.generic_visit(node)


def _names(tree: ast.Module, name: str, inner: str, new: str) -> dict[str, str]:
    """New names of the functions in a kernel's module: helpers of equal names differ from kernel to kernel."""
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {one: (new if one in (name, inner) else f"{one}_{new}") for one in functions}


def _rename(text: str, names: dict[str, str]) -> str:
    for old, new in names.items():
        if old != new:
            text = re.sub(rf"\b{re.escape(old)}\b", new, text)
    return text


def _needed(statements: Sequence[ast.stmt], body: str, skip: set[str], known: set[str]) -> list[str]:
    """Those of the module's imports and assignments that the code reaches, in their order."""
    wanted = {node.id for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name)}
    kept: list[str] = []
    for node in reversed(statements):
        if isinstance(node, ast.Assign):
            names = {target.id for target in node.targets if isinstance(target, ast.Name)}
        else:
            assert isinstance(node, ast.Import | ast.ImportFrom)
            node.names = [
                alias
                for alias in node.names
                if (alias.asname or alias.name.partition(".")[0]) in wanted - skip - {"torch"}
            ]
            if node.names:
                kept.append(ast.unparse(node))
            continue
        if names & (wanted - skip) and not names & known:
            kept.append(ast.unparse(node))
            wanted |= {part.id for part in ast.walk(node.value) if isinstance(part, ast.Name)}
    return kept[::-1]


def _add_kernel(parts: _Parts, kernel: ast.Call, name: str, new: str) -> None:
    method = ast.unparse(kernel.func).removeprefix("async_compile.")
    try:
        values = [ast.literal_eval(argument) for argument in kernel.args]
    except ValueError as error:
        raise CannotGenerate(f"the kernel {name} is not written out") from error
    if method == "cpp_pybinding":
        types, text = values[0], str(values[1])
        parts.preamble.setdefault("import ctypes")
        parts.preamble.setdefault("from torch.utils.cpp_extension import load_inline")
        text = text.replace("#include <torch/csrc/inductor/cpp_prefix.h>", "").strip()
        text, replaced = re.subn(r'extern\s+"C"\s+void\s+kernel\(', f'extern "C" void {new}(', text, count=1)
        if not replaced or re.search(r'#include\s*"', text):
            raise CannotGenerate(f"the kernel {name} is not one C++ function")
        # What else a kernel defines would clash with that of others.
        parts.cpp.append(_in_namespace(text, new))
        parts.launchers.append(f"{new} = _kernel({', '.join([repr(new), *(_ctype(one) for one in types)])})")
    elif method == "triton":
        parts.triton.append(_triton(parts, values[0], str(values[1]), name, new))
    else:
        raise CannotGenerate(f"the kernel {name} is made by async_compile.{method}")


def _in_namespace(text: str, name: str) -> str:
    before, start, rest = text.partition('extern "C" void')
    if not before.strip():
        return text
    return f"namespace in_{name} {{\n{before}\n{start}{rest}\n}}"


def _ctype(declared: str) -> str:
    if "*" in declared:
        return "ctypes.c_void_p"
    plain = declared.replace("const", "").strip()
    known = {
        "int64_t": "ctypes.c_int64",
        "int32_t": "ctypes.c_int32",
        "double": "ctypes.c_double",
        "float": "ctypes.c_float",
    }
    if plain not in known:
        raise CannotGenerate(f"a kernel takes a {plain}")
    return known[plain]


def _library(kernels: Sequence[str], flags: Sequence[str]) -> str:
    text = "\n\n".join(["#include <torch/csrc/inductor/cpp_prefix.h>", *kernels])
    if '"""' in text:
        raise CannotGenerate("the generated C++ holds three quotes in a row")
    return (
        f'SOURCE = r"""\n{text}\n"""\n\n'
        "_library = ctypes.CDLL(\n    load_inline(\n        name='inductor',\n        cpp_sources=SOURCE,\n"
        "        is_python_module=False,\n        no_implicit_headers=True,\n"
        f"        extra_cflags={[*_COMPILER_FLAGS, *flags]!r},\n        extra_ldflags=['-fopenmp'],\n    )\n)\n\n"
    )


def _triton(parts: _Parts, inner: str, text: str, name: str, new: str) -> str:
    """A Triton kernel's module, its imports taken out and its helpers renamed, as part of ours."""
    tree = ast.parse(text)
    names = _names(tree, name, inner, new)
    kept = []
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom) or (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        ):
            parts.preamble.setdefault(ast.unparse(node))
        elif isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            kept.append("\n".join(text.splitlines()[first - 1 : node.end_lineno]))
        elif not isinstance(node, ast.Expr):
            kept.append(ast.unparse(node))
    if new not in names.values():
        raise CannotGenerate(f"the kernel {name} is not in its own module")
    # Kernels that share a file would share the file that keeps what was tuned.
    code = _rename("\n".join(kept), names).replace("'autotune_local_cache': True", "'autotune_local_cache': False")
    return f"{code}\n\n"


def _literal(value: torch.Tensor) -> str:
    if value.numel() > _CONSTANT_ELEMENTS:
        raise CannotGenerate(f"the graph holds a constant of {value.numel()} elements, which is no weight or buffer")
    text = repr(value.tolist()).replace("nan", "float('nan')").replace("inf", "float('inf')")
    return f"torch.tensor({text}, dtype={value.dtype}, device={str(value.device)!r})"


def _without_inputs(problem: str) -> str:
    """The problem's module without what only the evaluator reads; its own constants are no parameters of the kernels."""
    lines = problem.splitlines()
    for node in ast.parse(problem).body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Constant)
            and lines[node.lineno - 1] == ast.get_source_segment(problem, node)
        ):
            lines[node.lineno - 1] += "  # tune: no"
    for node in reversed(ast.parse(problem).body):
        names: set[str] = set()
        if isinstance(node, ast.FunctionDef):
            names = {node.name}
        elif isinstance(node, ast.Assign):
            names = {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ImportFrom) and node.module == "__future__":
            names = set(_DROPPED)
        if names & _DROPPED:
            del lines[node.lineno - 1 : node.end_lineno]
    return "\n".join(lines).strip() + "\n"


def _model(generated: Sequence[Generated]) -> str:
    keys = [f"    {_expression(one.key)}: {number}," for number, one in enumerate(generated)]
    body = [
        "_SIZES = {",
        *keys,
        "}",
        "",
        "",
        "class ModelNew(Model):",
        '    """The reference, computed by the code above for the sizes that it was generated for."""',
        "",
        "    def forward(self, *inputs):",
        "        leaves = _leaves(inputs)",
        "        size = _SIZES.get(tuple([(v.shape, v.dtype) if isinstance(v, torch.Tensor) else v for v in leaves]))",
    ]
    for number, one in enumerate(generated):
        suffix = f"_{number}" if len(generated) > 1 else ""
        renamed = {name: f"{name}{suffix}" for name in one.constants}
        arguments = _rename(", ".join(one.arguments), renamed)
        body += [
            f"        if size == {number}:",
            f"            out = _call{suffix}([{arguments}])",
            f"            return {one.result}",
        ]
    return "\n".join([*body, "        return super().forward(*inputs)", ""])


def _expression(key: tuple[object, ...]) -> str:
    parts = [f"({part[0]!r}, {part[1]})" if isinstance(part, tuple) else repr(part) for part in key]
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
