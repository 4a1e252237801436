"""Parameters in C, C++ and CUDA: `#define NAME 8`, `constexpr int NAME = 8`, unroll pragmas, thread counts, launch bounds."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from kernelevo_searcher.csource import CToken, CTokenKind, tokenize_c
from kernelevo_searcher.tuner.ladders import Ladder, hinted_ladder, integer_ladder, is_kept

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["CParameter", "defined_in_c", "scan_c"]

_TYPES = """
    static const constexpr inline unsigned signed int long short char auto size_t ssize_t ptrdiff_t int8_t int16_t int32_t
    int64_t uint8_t uint16_t uint32_t uint64_t intptr_t uintptr_t uint std bool
"""
_TYPE_WORDS = frozenset(_TYPES.split())


@dataclass(frozen=True, slots=True)
class CParameter:
    """A token of the text that may take other values."""

    name: str
    token: CToken
    ladder: Ladder
    defined: bool
    """By this name, which the text has to use elsewhere: not so a number within a directive."""


def scan_c(text: str) -> list[CParameter]:
    """The parameters of a text, in its order. Comments and strings hold none."""
    tokens = tokenize_c(text)
    comments = _Comments(text, [token for token in tokens if token.kind is CTokenKind.COMMENT])
    code = [token for token in tokens if token.kind is not CTokenKind.COMMENT]
    found = []
    for index in range(len(code)):
        named = (
            _definition(code, index)
            or _pragma_unroll(code, index)
            or _num_threads(code, index)
            or _launch_bounds(code, index)
        )
        if named is None:
            continue
        name, value = named
        if comments.kept(name, value):
            continue
        hinted = comments.ladder(name, value)
        is_number = value.kind is CTokenKind.NUMBER
        ladder = hinted or (integer_ladder(name, value.text) if is_number and _inferable(code, index, name) else None)
        if ladder is not None:
            found.append(CParameter(name, value, ladder, _definition(code, index) is not None))
    return found


def defined_in_c(text: str) -> list[str]:
    """Names that a text defines as one token each, in its order."""
    code = [token for token in tokenize_c(text) if token.kind is not CTokenKind.COMMENT]
    return [found[0] for index in range(len(code)) if (found := _definition(code, index)) is not None]


def _definition(code: list[CToken], index: int) -> tuple[str, CToken] | None:
    return _define(code, index) or _constant(code, index)


class _Comments:
    """Hints are looked for behind a value on its line, and on the line above if nothing else stands there."""

    def __init__(self, text: str, comments: list[CToken]) -> None:
        self._text = text
        self._comments = comments

    def kept(self, name: str, value: CToken) -> bool:
        return any(is_kept(text, name) for text in self._beside(value))

    def ladder(self, name: str, value: CToken) -> Ladder | None:
        found = (hinted_ladder(text, name, value.text) for text in self._beside(value))
        return next((ladder for ladder in found if ladder is not None), None)

    def _beside(self, value: CToken) -> Iterator[str]:
        line_start = self._text.rfind("\n", 0, value.start) + 1
        line_end = self._text.find("\n", value.end)
        line_end = len(self._text) if line_end < 0 else line_end
        above_start = self._text.rfind("\n", 0, max(line_start - 1, 0)) + 1
        for comment in self._comments:
            behind = value.end <= comment.start < line_end
            above = above_start <= comment.start < line_start and not self._text[above_start : comment.start].strip()
            if behind or above:
                yield comment.text


def _texts(code: list[CToken], index: int, count: int) -> list[str]:
    return [token.text for token in code[index : index + count]]


def _starts_line(code: list[CToken], index: int) -> bool:
    return index == 0 or code[index - 1].kind is CTokenKind.NEWLINE


def _define(code: list[CToken], index: int) -> tuple[str, CToken] | None:
    """`#define NAME value` with one token as its value."""
    if not _starts_line(code, index) or _texts(code, index, 2) != ["#", "define"]:
        return None
    rest = list(takewhile(lambda token: token.kind is not CTokenKind.NEWLINE, code[index + 2 :]))
    if len(rest) != 2 or rest[0].kind is not CTokenKind.IDENTIFIER:
        return None
    if rest[1].kind not in (CTokenKind.NUMBER, CTokenKind.IDENTIFIER):
        return None
    return rest[0].text, rest[1]


def _constant(code: list[CToken], index: int) -> tuple[str, CToken] | None:
    """`constexpr int NAME = 8;`, also with `static`, `const`, `inline`; a plain `const int` too."""
    if code[index].text != "=" or index < 2 or index + 2 >= len(code):
        return None
    name, value, after = code[index - 1], code[index + 1], code[index + 2]
    if name.kind is not CTokenKind.IDENTIFIER or after.text not in (";", ",") or value.kind is CTokenKind.PUNCTUATION:
        return None
    words = set()
    position = index - 2
    while position >= 0 and (code[position].text in _TYPE_WORDS or code[position].text == "::"):
        words.add(code[position].text)
        position -= 1
    return (name.text, value) if words & {"constexpr", "const"} else None


def _inferable(code: list[CToken], index: int, name: str) -> bool:
    """Whether the name alone may earn a ladder: a local `const int n = 5` is most often no choice of the author's."""
    is_plain_constant = code[index].text == "=" and "constexpr" not in _texts(code, max(0, index - 8), 8)
    return not is_plain_constant or name.isupper() or (name.startswith("k") and name[1:2].isupper())


def _pragma_unroll(code: list[CToken], index: int) -> tuple[str, CToken] | None:
    """`#pragma unroll 4`, `#pragma GCC unroll 4`, with or without parentheses."""
    if not _starts_line(code, index) or _texts(code, index, 2) != ["#", "pragma"]:
        return None
    rest = [
        token
        for token in takewhile(lambda token: token.kind is not CTokenKind.NEWLINE, code[index + 2 :])
        if token.text not in ("(", ")", "GCC", "clang", "loop")
    ]
    if len(rest) != 2 or not rest[0].text.startswith("unroll") or rest[1].kind is not CTokenKind.NUMBER:
        return None
    return "UNROLL", rest[1]


def _num_threads(code: list[CToken], index: int) -> tuple[str, CToken] | None:
    """`num_threads(4)` of an OpenMP directive."""
    texts = _texts(code, index, 4)
    if len(texts) < 4 or texts[:2] != ["num_threads", "("] or texts[3] != ")":
        return None
    return ("NUM_THREADS", code[index + 2]) if code[index + 2].kind is CTokenKind.NUMBER else None


def _launch_bounds(code: list[CToken], index: int) -> tuple[str, CToken] | None:
    """The numbers of `__launch_bounds__(256, 2)`: threads of a block at most, and blocks of a multiprocessor at least."""
    if code[index].kind is not CTokenKind.NUMBER or index < 2:
        return None
    before = [token.text for token in code[max(0, index - 4) : index]]
    if before[-2:] == ["__launch_bounds__", "("]:
        return "LAUNCH_THREADS", code[index]
    return ("LAUNCH_BLOCKS", code[index]) if before[:2] == ["__launch_bounds__", "("] and before[3:] == [","] else None
