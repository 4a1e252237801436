"""Python source that nobody trusts, parsed and never run."""

from __future__ import annotations

import ast
import hashlib
import warnings
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SourceError:
    """Why a source cannot be parsed; `line` from 1 where one is known."""

    message: str
    line: int | None = None
    excerpt: str = ""

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}" if self.line else self.message


def digest_of(source: str) -> str:
    """SHA-256 of the source, in lower-case hexadecimal."""
    return hashlib.sha256(source.encode()).hexdigest()


def parse(source: str) -> ast.Module | SourceError:
    """The syntax tree, or why there is none. Never raises on a source, however odd."""
    if not source.strip():
        return SourceError("the source is empty")
    if "\0" in source:
        line = source.count("\n", 0, source.index("\0")) + 1
        return SourceError("the source holds a NUL character", line)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # e.g. invalid escapes: the author's business
            return ast.parse(source)
    except SyntaxError as error:
        lines = source.splitlines()
        at = error.lineno if error.lineno and error.lineno > 0 else None
        excerpt = lines[at - 1][:200] if at and at <= len(lines) else ""
        return SourceError(f"{type(error).__name__}: {error.msg}", at, excerpt)
    except (RecursionError, MemoryError):
        return SourceError("the source is nested too deeply, or too large, to be parsed")
    except ValueError as error:
        return SourceError(str(error))


def dotted(node: ast.AST) -> str:
    """`a.b.c` for a name or a chain of attributes, else an empty text."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    parts.append(node.id)
    return ".".join(reversed(parts))
