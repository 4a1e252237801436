"""C, C++ and CUDA text inside Python string literals: finding it, and cutting it into tokens.

Only as much of the language as it takes to tell code from comments and literals. Offsets lead back to the Python file, so
that an edit changes one token and nothing else, whatever escapes the literal holds.
"""

from __future__ import annotations

import ast
import enum
import re
import unicodedata
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["CToken", "CTokenKind", "EmbeddedText", "decode_literal", "looks_like_c", "normal_c", "tokenize_c"]


class CTokenKind(enum.Enum):
    IDENTIFIER = "identifier"
    NUMBER = "number"
    STRING = "string"
    PUNCTUATION = "punctuation"
    COMMENT = "comment"
    NEWLINE = "newline"
    """An end of line that a continuation does not cancel: directives end there."""


@dataclass(frozen=True, slots=True)
class CToken:
    """One token, and where it stands in the text."""

    kind: CTokenKind
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


_TOKEN = re.compile(
    r"""
      (?P<comment>//(?:\\\n|[^\n])*|/\*.*?(?:\*/|\Z))
    | (?P<raw>(?:u8|[uUL])?R"(?P<delimiter>[^()\\\s]{0,16})\(.*?(?:\)(?P=delimiter)"|\Z))
    | (?P<string>(?:u8|[uUL])?"(?:\\.|[^"\\\n])*"?|(?:u8|[uUL])?'(?:\\.|[^'\\\n])*'?)
    | (?P<number>\.?[0-9](?:[eEpP][+-]|'[0-9A-Za-z]|[0-9A-Za-z_.])*)
    | (?P<identifier>[^\W\d]\w*)
    | (?P<space>(?:[^\S\n]|\\\n)+)
    | (?P<newline>\n)
    | (?P<punctuation><<<|>>>|::|->|\#\#|<<|>>|<=|>=|==|!=|&&|\|\||\+\+|--|[-+*/%&|^]=|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_KINDS = {
    "comment": CTokenKind.COMMENT,
    "string": CTokenKind.STRING,
    "number": CTokenKind.NUMBER,
    "identifier": CTokenKind.IDENTIFIER,
    "newline": CTokenKind.NEWLINE,
    "punctuation": CTokenKind.PUNCTUATION,
}


def tokenize_c(text: str) -> list[CToken]:
    """Tokens in order, white space left out, comments kept. Never fails: what is no token is punctuation."""
    tokens = []
    for match in _TOKEN.finditer(text):
        group = match.lastgroup
        if match.group("raw") is not None:
            kind = CTokenKind.STRING
        elif group is None or group == "space":
            continue
        else:
            kind = _KINDS[group]
        tokens.append(CToken(kind, match.group(), match.start()))
    return tokens


def normal_c(text: str) -> str:
    """The code without comments and layout; equal for sources that a compiler reads alike."""
    parts = []
    in_directive = False
    line_is_empty = True
    for token in tokenize_c(text):
        if token.kind is CTokenKind.COMMENT:
            continue
        if token.kind is CTokenKind.NEWLINE:
            if in_directive:
                parts.append("\n")
            in_directive, line_is_empty = False, True
            continue
        if line_is_empty and token.text == "#":
            if parts and parts[-1] != "\n":
                parts.append("\n")
            in_directive = True
        line_is_empty = False
        parts.append(token.text)
    return " ".join(parts)


_C_SIGNS = re.compile(
    r"^\s*#\s*(include|define|pragma|if|ifdef|ifndef)\b|\bconstexpr\b|__global__|__device__|extern\s+\"C\""
    r"|\b(void|int|float|double|auto|torch::Tensor|at::Tensor)\s+\w+\s*\([^;{}]*\)\s*[;{]",
    re.MULTILINE,
)


def looks_like_c(text: str) -> bool:
    """Whether a string holds C code rather than words."""
    return _C_SIGNS.search(text) is not None


@dataclass(frozen=True, slots=True)
class EmbeddedText:
    """What a Python string literal says, and where in the Python source each character of it stands."""

    text: str
    offsets: tuple[int, ...]
    """For every character its offset in the Python source, and one more for the end."""

    def span(self, start: int, end: int) -> tuple[int, int]:
        """The part of the Python source that says `text[start:end]`."""
        return self.offsets[start], self.offsets[end]

    def is_plain(self, start: int, end: int) -> bool:
        """Whether every character of this part stands for itself in the Python source."""
        return all(right - left == 1 for left, right in pairwise(self.offsets[start : end + 1]))


_PREFIX = re.compile(r"(?P<prefix>[A-Za-z]*)(?P<quote>\"\"\"|'''|\"|')")
_SIMPLE = {"\\": "\\", "'": "'", '"': '"', "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ESCAPE = re.compile(
    r"\\(?:(?P<line>\n)|(?P<octal>[0-7]{1,3})|x(?P<x>[0-9a-fA-F]{2})|u(?P<u>[0-9a-fA-F]{4})|U(?P<U>[0-9a-fA-F]{8})"
    r"|N\{(?P<name>[^}]+)\}|(?P<simple>[\\'\"abfnrtv]))"
)


def decode_literal(literal: str, start: int) -> EmbeddedText | None:
    """Read a string literal that begins at `start` in its source; None for bytes, f-strings and what is not understood."""
    match = _PREFIX.match(literal)
    if match is None:
        return None
    prefix, quote = match["prefix"].lower(), match["quote"]
    if set(prefix) - {"r", "u"} or not literal.endswith(quote) or len(literal) < match.end() + len(quote):
        return None
    characters: list[str] = []
    offsets: list[int] = []
    position, end = match.end(), len(literal) - len(quote)
    while position < end:
        escape = _ESCAPE.match(literal, position, end) if "r" not in prefix and literal[position] == "\\" else None
        length = escape.end() - position if escape is not None else 1
        decoded = _decoded(escape) if escape is not None else literal[position]
        if decoded is None:
            return None
        characters.append(decoded)
        if decoded:
            offsets.append(start + position)
        position += length
    offsets.append(start + end)
    text = "".join(characters)
    try:
        # The reading above is our own; where it differs from Python's, nothing in this literal is touched.
        return EmbeddedText(text, tuple(offsets)) if ast.literal_eval(literal) == text else None
    except (ValueError, SyntaxError, MemoryError):
        return None


def _decoded(escape: re.Match[str]) -> str | None:
    if escape["line"]:
        return ""
    if escape["simple"]:
        return _SIMPLE[escape["simple"]]
    if escape["name"]:
        try:
            return unicodedata.lookup(escape["name"])
        except KeyError:
            return None
    if escape["octal"]:
        return chr(int(escape["octal"], 8))
    code = int(escape["x"] or escape["u"] or escape["U"], 16)
    return chr(code) if code <= 0x10FFFF else None
