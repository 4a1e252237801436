"""Source text as escaped HTML: coloured lightly, line by line, with what is invisible made visible."""

from __future__ import annotations

import keyword
import re
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["code_lines", "visible"]

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
_PYTHON = re.compile(
    r"(?P<string>[rbfuRBFU]{0,2}(?:\"\"\"[\s\S]*?(?:\"\"\"|\Z)|'''[\s\S]*?(?:'''|\Z)|\"(?:\\.|[^\"\\\n])*\"?|'(?:\\.|[^'\\\n])*'?))"
    r"|(?P<comment>\#[^\n]*)"
    rf"|(?P<keyword>\b(?:{'|'.join(keyword.kwlist)})\b)"
    r"|(?P<number>\b\d[\w.]*)"
)
_CXX = re.compile(
    r"(?P<comment>//[^\n]*|/\*[\s\S]*?(?:\*/|\Z))"
    r"|(?P<directive>\#[ \t]*\w+[^\n]*)"
    r"|(?P<keyword>\b(?:auto|bool|break|case|char|class|const|constexpr|continue|double|else|extern|float|for|if|inline|int|long|"
    r"return|short|signed|sizeof|static|struct|switch|template|typename|unsigned|using|void|volatile|while|"
    r"__global__|__device__|__shared__|__restrict__|__syncthreads)\b)"
    r"|(?P<number>\b\d[\w.]*)"
)
_LONGEST = 400_000
"""Characters: longer texts are shown uncoloured."""


def visible(text: str) -> str:
    """`text` with control and direction characters spelled out: they could show code other than what runs."""
    return _HIDDEN.sub(lambda match: f"\u27e8U+{ord(match[0]):04X}\u27e9", text.replace("\r\n", "\n"))


def code_lines(source: str) -> list[Markup]:
    """The lines of Python source, each escaped and coloured."""
    text = visible(source.rstrip("\n"))
    parts = _tokens(text) if len(text) <= _LONGEST else iter([("", text)])
    lines: list[list[Markup]] = [[]]
    for kind, part in parts:
        for number, piece in enumerate(part.split("\n")):
            if number:
                lines.append([])
            if piece:
                lines[-1].append(Markup('<span class="{}">{}</span>').format(kind, piece) if kind else escape(piece))
    return [Markup("").join(line) for line in lines]


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    for kind, part in _split(_PYTHON, text):
        if kind == "string" and part.count("\n") > 1 and ";" in part and "{" in part:
            # The kernel itself, in most languages: a C++ source inside a Python string.
            yield from _split(_CXX, part)
        else:
            yield kind, part


def _split(pattern: re.Pattern[str], text: str) -> Iterator[tuple[str, str]]:
    at = 0
    for match in pattern.finditer(text):
        if match.start() > at:
            yield "", text[at : match.start()]
        yield match.lastgroup or "", match[0]
        at = match.end()
    if at < len(text):
        yield "", text[at:]
