"""Inductor's Triton kernels as plain ones: launched by Triton itself, with the values of a launch written beside each kernel.

What Inductor writes is wrapped in its own autotuner, which tries a few configurations at the first call, out of sight. Here the
first of these stands in the source, where a person, a model or the tuner sees and changes it. A kernel whose grid is of a rarer
kind stays as Inductor wrote it.
"""

from __future__ import annotations

import ast
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernelevo_evaluator.runner.modules import import_source

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_BLOCKS: Mapping[str, tuple[str, ...]] = {
    "Grid1D": ("x",),
    "Grid2D": ("x", "y"),
    "Grid3D": ("x", "y", "z"),
}
"""Kinds of grids, and the axes that each has programs along."""
_ELEMENTWISE = (64, 4096)
_TILED = (1, 1024)
_ROWS = (1, 256)
_REDUCED = (64, 16384)
"""Least and most elements along an axis of a block: of a kernel with one axis, with several, and of a reduction's two kinds."""
_LONGEST = 1 << 15
"""More elements do not fit into a program's registers."""
_WARPS = (1, 2, 4, 8, 16, 32)
_CONSTANT = re.compile(r"^(\s+[A-Z]\w*: tl\.constexpr = \d+)$", re.MULTILINE)
_KEPT = "  # tune: no"


@dataclass(frozen=True, slots=True)
class PlainKernel:
    """A kernel under its new name, with its launch."""

    name: str
    source: str
    """The kernel and what it is launched with, without imports."""
    imports: tuple[str, ...]
    arguments: int
    """Positional arguments of a launch."""


def plain_kernel(text: str, inner: str, new: str, names: Mapping[str, str], *, timed: bool) -> PlainKernel | None:
    """The kernel as a plain one, or None where it has to stay as Inductor wrote it.

    Args:
        text: the kernel's module.
        inner: name of its function.
        new: name that it gets.
        names: new names of all functions of that module.
        timed: whether calls of the sizes that are timed reach it: what no timing sees is not offered to a tuner.
    """
    tree = ast.parse(text)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    function = next((node for node in functions if node.name == inner), None)
    if function is None or len(function.decorator_list) != 2:
        return None
    grid = _grid_type(function.decorator_list[0])
    if grid not in _BLOCKS:
        return None
    declared = [argument.arg for argument in function.args.args]
    constants = {argument.arg for argument in function.args.args if argument.annotation is not None}
    blocks = [f"{axis.upper()}BLOCK" for axis in _BLOCKS[grid]]
    # A kernel with a row to each program has no block along that axis.
    counts = [f"{axis}numel" for axis in _BLOCKS[grid]]
    if any(count not in declared for count in counts):
        return None
    try:
        config, extents = _first_configuration(text, inner)
    except Exception:
        # Heuristics of another torch: its own wrapper still works.
        return None
    values = {name: value for name, value in config.kwargs.items() if name in constants}
    if set(values) != constants or not all(isinstance(value, int) for value in values.values()):
        return None
    lines = []
    for node in functions:
        start = node.decorator_list[-1].lineno if node is function else _first_line(node)
        lines.append("\n".join(text.splitlines()[start - 1 : node.end_lineno]))
    code = _CONSTANT.sub(rf"\1{_KEPT}", "\n\n\n".join(lines))
    for old, name in names.items():
        code = re.sub(rf"\b{re.escape(old)}\b", name, code)
    code += "\n\n\n" + _launch(new, values, config.num_warps, config.num_stages, extents, timed=timed)
    programs = [
        f'triton.cdiv(meta["{count}"], meta["{block}"])' if block in constants else f'meta["{count}"]'
        for count, block in zip(counts, blocks, strict=True)
    ]
    code += f"\n\n\ndef {new}_grid(meta):\n    return ({', '.join(programs)},)\n"
    return PlainKernel(
        name=new,
        source=code,
        imports=tuple(_imports(tree, code)),
        arguments=len(declared) - len(constants),
    )


def _first_line(node: ast.FunctionDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _grid_type(decorator: ast.expr) -> str:
    for node in ast.walk(decorator):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "grid_type" and isinstance(value, ast.Constant):
                    return str(value.value)
    return ""


def _first_configuration(text: str, inner: str) -> tuple[Any, dict[str, int]]:
    """What Inductor's heuristics try first, as a `triton.Config`, and the extents along each axis. Nothing is compiled."""
    # The driver is the one that this process has; choosing it by hand fails where there is none.
    text = re.sub(r"^triton_helpers\.set_driver_to_\w+\(\)$", "", text, flags=re.MULTILINE)
    tuner = getattr(import_source(text, f"heuristics_of_{inner}"), inner)
    return tuner.configs[0], dict(getattr(tuner, "size_hints", None) or {})


def _launch(
    name: str, values: Mapping[str, int], warps: int, stages: int, extents: Mapping[str, int], *, timed: bool
) -> str:
    """The values of a launch, each with those to try instead.

    Stages are kept: they matter to loops around `tl.dot`, which these kernels have none of.
    """
    lines = [f"{name}_launch = dict("]
    for block, value in values.items():
        ladder = _ladder(block, value, values, extents)
        lines.append(f"    {block}={value},{_hint(ladder) if timed else _KEPT}")
    lines.append(f"    num_warps={warps},{_hint(sorted({*_WARPS, warps})) if timed else _KEPT}")
    return "\n".join([*lines, f"    num_stages={stages},{_KEPT}", ")"])


def _ladder(block: str, value: int, values: Mapping[str, int], extents: Mapping[str, int]) -> list[int]:
    """Powers of two up to the axis' extent, and the value itself."""
    reduced = math.prod(extent for axis, extent in extents.items() if axis.startswith("r"))
    along = "r" if block.startswith("R") else block[0].lower()
    extent = next((extent for axis, extent in extents.items() if axis.startswith(along)), _LONGEST)
    if block.startswith("R"):
        least, most = _REDUCED
    elif any(axis.startswith("r") for axis in extents):
        least, most = _ROWS
        if not any(name.startswith("R") for name in values):
            # Whole rows to each program.
            most = min(most, max(1, _LONGEST // reduced))
    else:
        least, most = _ELEMENTWISE if len(values) == 1 else _TILED
    powers = (1 << power for power in range(15))
    return sorted({value, *(power for power in powers if least <= power <= most and power < 2 * extent)})


def _hint(ladder: Sequence[int]) -> str:
    return f"  # tune: {', '.join(map(str, ladder))}" if len(ladder) > 1 else _KEPT


def _imports(tree: ast.Module, code: str) -> list[str]:
    """Those of the module's imports that the code needs."""
    used = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    found = []
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias for alias in node.names if (alias.asname or alias.name.partition(".")[0]) in used]
            if names:
                node.names = names
                found.append(ast.unparse(node))
    return found
