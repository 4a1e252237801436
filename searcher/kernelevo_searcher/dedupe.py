"""Telling that two candidates are the same program, before anything is paid for the second.

The digest is of the syntax tree without docstrings, with C code in strings reduced to its tokens: layout and comments do not
count, names and values do. Two programs that differ in the digest may still behave alike; that is not looked for.
"""

from __future__ import annotations

import ast
import warnings

from kernelevo_searcher.csource import looks_like_c, normal_c
from kernelevo_searcher.events import text_digest

__all__ = ["normal_digest"]


class _Normalise(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if isinstance(node.value, str) and looks_like_c(node.value):
            return ast.Constant(normal_c(node.value))
        # The prefix of a literal (`u""`) means nothing.
        return ast.Constant(node.value)

    def visit_Module(self, node: ast.Module) -> ast.AST:
        return self._without_docstring(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self._without_docstring(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._without_docstring(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._without_docstring(node)

    def _without_docstring(self, node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        if ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
        return self.generic_visit(node)


def normal_digest(source: str) -> str:
    """SHA-256 of the normalised source; of the stripped text where it is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
        return text_digest(ast.dump(_Normalise().visit(tree)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return text_digest("\n".join(line.rstrip() for line in source.strip().splitlines()))
