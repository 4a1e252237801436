"""What a definition needs of its own file: the top-level statements that it uses, and those that these use, as they are written.

Read from the text alone; nothing is run. Names are told apart by spelling, so that a statement too many may be taken, never one
too few, unless the file reaches for names in ways that only running it shows.
"""

from __future__ import annotations

import ast
import builtins
from typing import TYPE_CHECKING

from kernelevo_searcher.inputs import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["SourceFile"]


class SourceFile:
    """A Python file that definitions are taken out of.

    Raises:
        BadInput: it is not Python that can be compiled.
    """

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError) as error:
            raise BadInput(f"{path} is not Python that can be compiled: {error}.") from error
        self._lines = text.splitlines()
        self._body = [node for node in tree.body if not _is_main_guard(node)]
        self.binds: dict[str, list[int]] = {}
        """For each top-level name the places of the statements that define or change it."""
        self._always: list[int] = []
        for place, node in enumerate(self._body):
            names = set(_bound(node))
            for name in names:
                self.binds.setdefault(name, []).append(place)
            if "*" in names or (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
                self._always.append(place)

    def definition(self, name: str) -> ast.stmt | None:
        """The last statement that gives this name its value; None where there is none."""
        places = self.binds.get(name)
        return self._body[places[-1]] if places else None

    def literal(self, name: str) -> object:
        """The value of a name that a plain literal is assigned to; None for any other."""
        node = self.definition(name)
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            try:
                return ast.literal_eval(node.value)
            except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
                return None
        return None

    def needed(self, roots: Iterable[str]) -> tuple[str, frozenset[str]]:
        """The text of all that these names need, in the file's order, and the names that it defines.

        Raises:
            BadInput: something of it is imported from the user's own code, which an evaluator does not have.
        """
        taken: set[int] = set(self._always)
        defined: set[str] = set()
        waiting = [*roots, *(name for place in taken for name in _used(self._body[place]))]
        while waiting:
            name = waiting.pop()
            if name in defined or name not in self.binds:
                continue
            defined.add(name)
            for place in self.binds[name]:
                if place not in taken:
                    taken.add(place)
                    # A statement that binds several names may need what each of them needs.
                    waiting += [*_used(self._body[place]), *_bound(self._body[place])]
        for place in sorted(taken):
            self._refuse_own_code(self._body[place])
        return self._text(sorted(taken)), frozenset(defined)

    def _text(self, places: list[int]) -> str:
        blocks: list[str] = []
        written, small = 0, False
        for place in places:
            node = self._body[place]
            decorators: list[ast.expr] = getattr(node, "decorator_list", [])
            first = min([node.lineno, *(one.lineno for one in decorators)])
            while first - 1 > written and self._lines[first - 2].startswith("#") and first > 2:
                first -= 1
            first = max(first, written + 1)
            last = node.end_lineno or node.lineno
            if last > written:
                gap = "\n\n\n"
                if _is_small(node) and small:
                    gap = "\n" if self._lines[first - 2].strip() else "\n\n"
                blocks.append((gap if blocks else "") + "\n".join(self._lines[first - 1 : last]))
                written, small = last, _is_small(node)
        return "".join(blocks)

    def _refuse_own_code(self, node: ast.stmt) -> None:
        for one in ast.walk(node):
            if not isinstance(one, ast.Import | ast.ImportFrom):
                continue
            if isinstance(one, ast.ImportFrom) and one.level:
                raise BadInput(
                    f"{self.path} line {one.lineno} imports from its own package, which the evaluator does not have: put what is "
                    "needed into the file."
                )
            modules: list[str] = []
            if isinstance(one, ast.Import):
                modules = [alias.name for alias in one.names]
            elif isinstance(one, ast.ImportFrom) and one.module:
                modules = [one.module]
            for module in modules:
                beside = self.path.parent / module.partition(".")[0]
                if beside.with_suffix(".py").is_file() or (beside / "__init__.py").is_file():
                    raise BadInput(
                        f"{self.path} line {one.lineno} imports {module}, which lies beside it and which the evaluator does not "
                        "have: put what is needed into the file."
                    )


def used_names(expression: ast.expr) -> set[str]:
    """Names that an expression may take from its module."""
    return set(_used(expression))


def _is_main_guard(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and any(
        isinstance(one, ast.Name) and one.id == "__name__" for one in ast.walk(node.test)
    )


def _used(node: ast.AST) -> Iterable[str]:
    known = vars(builtins)
    for one in ast.walk(node):
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load) and one.id not in known:
            yield one.id
        elif isinstance(one, ast.Global):
            yield from one.names
        elif isinstance(one, ast.Constant) and isinstance(one.value, str) and one.value.isidentifier():
            # A forward reference in an annotation, or a name that is looked up.
            yield one.value


def _bound(node: ast.stmt) -> Iterable[str]:
    """Names that a top-level statement defines, or whose value it changes."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Delete):
        targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else [node.target]
        for target in targets:
            yield from _targets(target)
    elif isinstance(node, ast.If | ast.Try | ast.With | ast.For | ast.While | ast.Match):
        for one in ast.walk(node):
            if one is not node and isinstance(one, ast.stmt):
                yield from _bound(one)
        if isinstance(node, ast.For):
            yield from _targets(node.target)


def _targets(target: ast.expr) -> Iterable[str]:
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, ast.Tuple | ast.List):
        for one in target.elts:
            yield from _targets(one)
    elif isinstance(target, ast.Attribute | ast.Subscript | ast.Starred):
        yield from _targets(target.value)


def _is_small(node: ast.stmt) -> bool:
    return not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
