"""What a configuration has to keep to, read from the source and the device: one that does not would fail, or not be built.

Asked for by the source itself are its assertions over parameters (`static_assert(TILE % UNROLL == 0)`, `tl.static_assert`,
`assert`). Triton wants powers of two wherever `tl.arange` takes a parameter. Shared memory is bounded by the device, or by what
a declaration may take. What cannot be told counts as kept: the evaluator decides.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from kernelevo_searcher.tuner.space import Configuration, Parameter

__all__ = ["Constraints", "find_constraints"]

_STATIC_SHARED_BYTES = 48 << 10
"""Most that `__shared__` arrays of a fixed size may take, on any device."""
_ARANGE = re.compile(r"\barange\(\s*0\s*,\s*(\w+)\s*\)")
_ASSERTION = re.compile(r"\b(?:static_assert\s*\(|assert\s+)(?P<text>[^;\n\"']+)")
_SHARED = re.compile(
    r"\b__shared__\s+(?:__align__\(\d+\)\s*)?(?P<type>[\w:]+)\s+\w+\s*(?P<sizes>(?:\[[^\]\n]+\])+)\s*;"
)
_C_OPERATORS = ((re.compile(r"&&"), " and "), (re.compile(r"\|\|"), " or "), (re.compile(r"!(?!=)"), " not "))
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|#(?!\s*define\b)[^\n]*", re.DOTALL)
_BYTES = {
    **dict.fromkeys(("char", "int8_t", "uint8_t", "bool"), 1),
    **dict.fromkeys(("half", "__half", "short", "__nv_bfloat16", "nv_bfloat16", "int16_t", "uint16_t"), 2),
    **dict.fromkeys(("float", "int", "unsigned", "int32_t", "uint32_t", "half2", "__half2"), 4),
    **dict.fromkeys(("double", "float2", "int64_t", "int2", "long"), 8),
    **dict.fromkeys(("float4", "int4", "uint4"), 16),
}
_DOT = re.compile(r"\btl\.dot(?:_scaled)?\(")
_NARROW = re.compile(r"float8|fp8|e4m3|e5m2|int8|uint8")
_FACTORS = ("BLOCK_M", "BLOCK_N", "BLOCK_K")
_BINARY: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARED: Mapping[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class _Unknown(Exception):
    """An expression holds something that is no parameter and no number."""


@dataclass(frozen=True, slots=True)
class Constraints:
    """Of one source."""

    asserted: tuple[ast.expr, ...] = ()
    powers: frozenset[str] = frozenset()
    """Parameters that must be powers of two."""
    shared: tuple[tuple[int, tuple[ast.expr, ...]], ...] = ()
    """Bytes of an element, and the extents, of arrays in shared memory."""
    element_bytes: int = 0
    """Of the tiles that `tl.dot` reads, at least; 0 where there is none."""

    def allow(
        self, parameters: Sequence[Parameter], configuration: Configuration, shared_bytes: int | None = None
    ) -> bool:
        """Whether nothing is known against these values.

        Args:
            shared_bytes: most shared memory of a block on the device, where it is known.
        """
        numbers = _numbers(parameters, configuration)
        return (
            all(_holds(one, numbers) for one in self.asserted)
            and all(value > 0 and not value & (value - 1) for name, value in numbers.items() if name in self.powers)
            and self._static(numbers) <= _STATIC_SHARED_BYTES
            and (shared_bytes is None or self._staged(numbers) <= shared_bytes)
        )

    def _static(self, numbers: Mapping[str, int]) -> int:
        total = 0
        for size, extents in self.shared:
            try:
                total += size * math.prod(_value(extent, numbers) for extent in extents)
            except _Unknown:
                continue
        return total

    def _staged(self, numbers: Mapping[str, int]) -> int:
        """Bytes that the tiles of a pipelined product take, at least: a stage fewer than asked for may be in memory."""
        if not self.element_bytes or any(name not in numbers for name in _FACTORS):
            return 0
        rows, columns, depth = (numbers[name] for name in _FACTORS)
        return max(1, numbers.get("num_stages", 1) - 1) * depth * (rows + columns) * self.element_bytes


def find_constraints(source: str, names: Sequence[str]) -> Constraints:
    """Constraints over parameters of these names."""
    known = {name.partition("#")[0] for name in names}
    text = _COMMENT.sub("", source)
    asserted = [one for match in _ASSERTION.finditer(text) if (one := _parsed(_first_argument(match["text"])))]
    shared = []
    for match in _SHARED.finditer(text):
        extents = [_parsed(size) for size in re.findall(r"\[([^\]]+)\]", match["sizes"])]
        if match["type"] in _BYTES and all(extents):
            shared.append((_BYTES[match["type"]], tuple(one for one in extents if one is not None)))
    return Constraints(
        asserted=tuple(one for one in asserted if _names_in(one) and _names_in(one) <= known),
        powers=frozenset(_ARANGE.findall(text)) & known,
        shared=tuple(shared),
        element_bytes=(1 if _NARROW.search(text) else 2) if _DOT.search(text) else 0,
    )


def _first_argument(text: str) -> str:
    """Up to the comma or the bracket that ends it."""
    depth = 0
    for place, character in enumerate(text):
        if character in "([":
            depth += 1
        elif character in ")]":
            depth -= 1
        if depth < 0 or (character == "," and not depth):
            return text[:place]
    return text


def _parsed(text: str) -> ast.expr | None:
    for pattern, replacement in _C_OPERATORS:
        text = pattern.sub(replacement, text)
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        return None


def _names_in(expression: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}


def _numbers(parameters: Sequence[Parameter], configuration: Configuration) -> dict[str, int]:
    """Whole numbers by the name that the source gives them; a name that several parameters have says nothing."""
    found: dict[str, int] = {}
    several: set[str] = set()
    for parameter, text in zip(parameters, configuration, strict=True):
        name = parameter.name.partition("#")[0]
        digits = text.rstrip("uUlLzZ")
        if name in found:
            several.add(name)
        elif digits.isdecimal():
            found[name] = int(digits)
    return {name: value for name, value in found.items() if name not in several}


def _holds(expression: ast.expr, numbers: Mapping[str, int]) -> bool:
    try:
        return bool(_value(expression, numbers))
    except (_Unknown, ZeroDivisionError):
        return True


def _value(node: ast.expr, numbers: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int() as value):
            return int(value)
        case ast.Name(id=name) if name in numbers:
            return numbers[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_value(left, numbers), _value(right, numbers))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return int(not _value(operand, numbers))
        case ast.BoolOp(op=op, values=values):
            each = (_value(value, numbers) for value in values)
            return int(all(each) if isinstance(op, ast.And) else any(each))
        case ast.Compare(left=left, ops=ops, comparators=others):
            return int(all(_comparisons(left, ops, others, numbers)))
    raise _Unknown


def _comparisons(
    left: ast.expr, ops: Sequence[ast.cmpop], others: Sequence[ast.expr], numbers: Mapping[str, int]
) -> Iterator[bool]:
    values = [_value(one, numbers) for one in (left, *others)]
    for op, first, second in zip(ops, values, values[1:], strict=False):
        if type(op) not in _COMPARED:
            raise _Unknown
        yield _COMPARED[type(op)](first, second)
