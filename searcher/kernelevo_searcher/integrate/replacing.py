"""A definition in somebody's file replaced by the kernel that was found for it: what changes, before anything is written.

The definition itself stays where it is; a few lines behind it put the kernel, which is a file beside it, in its place. Nothing is
run. What was searched must be what stands in the file, with all that it uses there.
"""

from __future__ import annotations

import ast
import difflib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from kernelevo_searcher.closure import SourceFile
from kernelevo_searcher.inputs import BadInput

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kernelevo_api.types import ProblemReport

__all__ = ["Replacement", "Target", "replace", "target_of"]

_MARK = "# KernelEvo:"


@dataclass(frozen=True, slots=True)
class Target:
    """What a problem was made of."""

    name: str
    """Of the class or function in the problem's source."""
    arguments: int | None
    """Tensors that a function is called with, by position; absent for a class."""
    fixed: bool = False
    """The problem makes the class with arguments of its own, so that its kernel takes none."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """Two files and their new texts."""

    path: Path
    before: str
    after: str
    kernel_path: Path
    kernel_before: str
    """Empty where there is none yet."""
    kernel: str

    def diff(self) -> str:
        """Both changes, as `git apply` and `patch -p1` take them."""
        return _diff(self.path, self.before, self.after) + _diff(self.kernel_path, self.kernel_before, self.kernel)


def target_of(problem: str) -> Target:
    """What the problem's `Model` stands for: the class that it derives from, the function that it calls, or itself."""
    body = ast.parse(problem).body
    top = {node.name: node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    model = top.get("Model")
    if not isinstance(model, ast.ClassDef):
        raise BadInput("the problem defines no class Model.")
    methods = {node.name: node for node in model.body if isinstance(node, ast.FunctionDef)}
    for base in model.bases:
        if isinstance(base, ast.Name) and isinstance(top.get(base.id), ast.ClassDef):
            return Target(base.id, None, fixed="__init__" in methods)
    called = _only_call(methods.get("forward")) if list(methods) == ["forward"] else None
    if (
        called is not None
        and isinstance(called.func, ast.Name)
        and isinstance(top.get(called.func.id), ast.FunctionDef)
    ):
        if called.keywords or any(isinstance(one, ast.Starred) for one in called.args):
            raise BadInput(
                f"the problem calls {called.func.id} with keywords, or with arguments that only running it shows: there is no "
                "plain call to replace. Call the kernel where you need it: kernelevo best RUN --torch-library -o FILE"
            )
        return Target(called.func.id, len(called.args))
    return Target("Model", None)


def replace(
    path: Path,
    text: str,
    name: str | None,
    problem: str,
    report: ProblemReport,
    kernel: str,
    *,
    operator: bool,
    said: str,
    force: bool = False,
) -> Replacement:
    """The change that puts a kernel in the place of a definition.

    Args:
        name: of the definition in this file; absent: as in the problem.
        kernel: the text of the kernel's file.
        operator: that file defines `ModelOperator`, not only `ModelNew`.
        said: of the kernel, in one line.
        force: although the definition is not what was searched.

    Raises:
        BadInput: there is no such definition, it is not what was searched, or it cannot be replaced; the message says why.
    """
    target = target_of(problem)
    name = name or target.name
    if f"{_MARK} {name}," in text:
        raise BadInput(f"{name} in {path} is replaced already: take the lines behind it out first.")
    if f"{_MARK} {name}," in text:
        raise BadInput(f"{name} in {path} is replaced already: take the lines behind it out first.")
    file = SourceFile(path, text)
    node = file.definition(name)
    if not isinstance(node, ast.ClassDef | ast.FunctionDef):
        raise BadInput(f"{path} defines no class or function {name} at its top level. Name it: {path}:NAME.")
    if isinstance(node, ast.ClassDef) != (target.arguments is None):
        raise BadInput(f"{name} in {path} is a {_kind(node)}, and what was searched is none.")
    if target.fixed:
        raise BadInput(
            f"the problem makes {target.name} with arguments of its own, so that its kernel is for these alone and takes none: "
            "it cannot stand for the class. Use it where you make such a module: kernelevo best RUN -o FILE"
        )
    if not force and _meaning(file, name, name) != _meaning(SourceFile(path, problem), target.name, name):
        raise BadInput(
            f"{name} in {path}, or what it uses there, is not what was searched: the kernel was verified for other code. "
            "--force replaces it all the same."
        )
    kernel_path = path.with_name(f"{name.lower()}_kernel.py")
    shapes = ", ".join(f"{one.dtype}{list(one.shape)}" for one in report.inputs)
    lines = _lines(name, target, kernel_path.stem, path, "ModelOperator" if operator else "ModelNew", said, shapes)
    return Replacement(
        path=path,
        before=text,
        after=_insert(text, name, lines),
        kernel_path=kernel_path,
        kernel_before=kernel_path.read_text(encoding="utf-8") if kernel_path.exists() else "",
        kernel=kernel,
    )


def _only_call(method: ast.FunctionDef | None) -> ast.Call | None:
    if method is None or len(method.body) != 1:
        return None
    statement = method.body[0]
    return statement.value if isinstance(statement, ast.Return) and isinstance(statement.value, ast.Call) else None


def _kind(node: ast.stmt) -> str:
    return "class" if isinstance(node, ast.ClassDef) else "function"


def _meaning(file: SourceFile, name: str, called: str) -> str:
    """All that a definition needs of its file, without comments and layout, under the name that it has elsewhere."""
    tree = ast.parse(file.needed({name})[0])
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            node.name = called
        elif isinstance(node, ast.Name) and node.id == name:
            node.id = called
    return ast.dump(tree)


def _lines(name: str, target: Target, module: str, path: Path, kernel: str, said: str, shapes: str) -> Sequence[str]:
    package = "." if (path.parent / "__init__.py").exists() else ""
    head = [
        f"{_MARK} {name}, {said}",
        f"# Verified for inputs {shapes or 'without tensors'} and the further shapes of its problem; without these lines the "
        "definition above is used.",
    ]
    if target.arguments is None:
        return [*head, f"from {package}{module} import {kernel} as {name}  # noqa: E402"]
    return [
        *head,
        f"from {package}{module} import {kernel} as _{name}_kernel  # noqa: E402",
        "",
        f"_{name}_by_kernel, _{name}_as_written = _{name}_kernel(), {name}",
        "",
        "",
        f"def {name}(*args, **kwargs):",
        f"    if len(args) == {target.arguments} and not kwargs:",
        f"        return _{name}_by_kernel(*args)",
        f"    return _{name}_as_written(*args, **kwargs)",
    ]


def _insert(text: str, name: str, lines: Sequence[str]) -> str:
    """The file with these lines behind the last definition of a name."""
    module = cst.parse_module(text)
    places = [
        place
        for place, node in enumerate(module.body)
        if isinstance(node, cst.ClassDef | cst.FunctionDef) and node.name.value == name
    ]
    if not places:
        raise BadInput(f"{name} is not a plain definition at the file's top level.")
    newline = module.default_newline
    # Behind a statement, so that blank lines and remarks belong to the lines that follow them.
    added = cst.parse_module(newline.join(["pass", "", "", *lines, ""])).body[1:]
    at = places[-1] + 1
    return module.with_changes(body=[*module.body[:at], *added, *module.body[at:]]).code


def _diff(path: Path, before: str, after: str) -> str:
    shown = os.path.relpath(path).replace(os.sep, "/")
    lines = list(
        difflib.unified_diff(
            before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{shown}", f"b/{shown}"
        )
    )
    if lines and not before:
        # What `git apply` reads, on every system, as a file that was not there.
        lines[0] = "--- /dev/null\n"
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
