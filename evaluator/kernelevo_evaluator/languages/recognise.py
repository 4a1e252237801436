"""Which language a candidate is written in, told from its syntax alone: nothing is imported."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from kernelevo_api.types import Language
from kernelevo_evaluator.sources import dotted

if TYPE_CHECKING:
    from collections.abc import Iterable

_BY_PACKAGE = {
    "triton": Language.TRITON,
    "cutlass": Language.CUTE,
    "pycuda": Language.PYCUDA,
}
_ORDER = (Language.TRITON, Language.CUTE, Language.PYCUDA, Language.CUDA_INLINE, Language.CPP_INLINE)
"""Where a source shows several, the first of these."""
_BUILD_CALLS = frozenset({"load_inline", "load"})


def recognise(tree: ast.Module) -> Language:
    """The language of a candidate; `Language.TORCH` where it shows no other."""
    seen: set[Language] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            seen.update(_packages(alias.name for alias in node.names))
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            seen.update(_packages([node.module]))
        elif isinstance(node, ast.Call):
            language = _build_call(node)
            if language is not None:
                seen.add(language)
    for language in _ORDER:
        if language in seen:
            return language
    return Language.TORCH


def _packages(names: Iterable[str]) -> set[Language]:
    roots = {name.partition(".")[0] for name in names}
    return {language for package, language in _BY_PACKAGE.items() if package in roots}


def _build_call(node: ast.Call) -> Language | None:
    name = dotted(node.func)
    last = name.rpartition(".")[2]
    if last not in _BUILD_CALLS or (last == "load" and "cpp_extension" not in name):
        return None
    for keyword in node.keywords:
        if keyword.arg == "cuda_sources" and not _empty(keyword.value):
            return Language.CUDA_INLINE
        if keyword.arg is None and _mentions(keyword.value, "cuda_sources"):
            return Language.CUDA_INLINE
    if len(node.args) >= 3 and not _empty(node.args[2]):
        return Language.CUDA_INLINE
    return Language.CPP_INLINE


def _empty(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return not node.value
    return isinstance(node, ast.List | ast.Tuple) and not node.elts


def _mentions(node: ast.expr, text: str) -> bool:
    return any(isinstance(part, ast.Constant) and part.value == text for part in ast.walk(node))
