"""Which values a parameter may take, judged by its name and its value.

A ladder is in order: neighbours on it are expected to behave alike, and the search walks it by steps. A name that speaks of
the problem's own sizes gets none, because another value there is another function; a hint in a comment beats all of this.
Ladders depend on the name and not on where the search stands, so that a child's space is its parent's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Ladder", "hinted_ladder", "integer_ladder", "is_kept"]


@dataclass(frozen=True, slots=True)
class Ladder:
    """Values as they stand in the source, and how they are related."""

    values: tuple[str, ...]
    ordered: bool
    leverage: float
    """How much a change of this usually matters; orders what is tried first."""


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_TUNABLE = _set(
    """
    block blocks tile tiles unroll unrolled vec vector veclen vectorize warp warps thread threads nthreads stage stages chunk
    chunks group groups grain per items prefetch split splits lanes lane depth pipeline pipelines cache ilp step steps simd
    jam strip panel ways interleave accumulators accs acc regs reg ctas cta wave waves
    """
)
_PROBLEM = _set(
    """
    n m k d h w c b l t s dim dims size sizes hidden batch rows row cols col columns features feature channel channels heads
    head seq sequence len length vocab height width in out input output numel elements element count total classes eps
    epsilon seed version max min inf dtype axis ndim rank index id offset mask magic bits bytes alignment align pi log2e
    """
)
_SWITCH = _set("use enable disable with without do allow is has fast flush fuse fused inline even")
_THREADS = _set("thread threads nthreads")
_SMALL = _set("stage stages depth pipeline pipelines ctas")
_UNROLLED = _set("unroll unrolled ilp jam accumulators accs acc vec vector veclen interleave")
_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
_NUMBER = re.compile(r"(?P<value>[0-9]+)(?P<suffix>[uUlLzZ]*)")

_LARGEST = 1 << 16
_POWERS = tuple(1 << exponent for exponent in range(17))


def _words(name: str) -> list[str]:
    words = [word.lower() for part in name.split("_") for word in _WORD.findall(part)]
    return words[1:] if len(words) > 1 and words[0] == "k" and name.startswith("k") else words


def integer_ladder(name: str, text: str) -> Ladder | None:
    """The ladder of an integer constant, or None where the name gives no reason to change it.

    Args:
        name: as the source calls it.
        text: the literal, e.g. "8", "64u".
    """
    match = _NUMBER.fullmatch(text)
    if match is None or (len(match["value"]) > 1 and match["value"].startswith("0")):
        return None
    value, suffix = int(match["value"]), match["suffix"]
    words = _words(name)
    tunable = not _TUNABLE.isdisjoint(words)
    if value in (0, 1) and words and words[0] in _SWITCH:
        return Ladder((f"0{suffix}", f"1{suffix}"), ordered=False, leverage=1.0)
    if value > _LARGEST or (not tunable and (not words or not _PROBLEM.isdisjoint(words))):
        return None
    numbers, leverage = _numbers(words, value)
    if value not in numbers:
        numbers = tuple(sorted({*numbers, value}))
    return Ladder(tuple(f"{number}{suffix}" for number in numbers), ordered=True, leverage=leverage if tunable else 0.8)


def _numbers(words: list[str], value: int) -> tuple[tuple[int, ...], float]:
    has = set(words)
    if words == ["launch", "blocks"]:
        return (1, 2, 3, 4, 5, 6, 8), 1.2
    if has & {"warp", "warps"}:
        return (1, 2, 4, 8, 16, 32), 2.0
    if has & _SMALL:
        return (1, 2, 3, 4, 5, 6, 8), 1.5
    if has & _THREADS:
        # Below 32 these are cores; from there on, threads of a block.
        return ((1, 2, 3, 4, 6, 8, 12, 16), 2.5) if value < 32 else ((32, 64, 128, 256, 512, 1024), 2.0)
    if has & {
        "unroll",
        "unrolled",
        "ilp",
        "jam",
        "accumulators",
        "accs",
        "acc",
        "vec",
        "vector",
        "veclen",
        "interleave",
    }:
        return (1, 2, 4, 8, 16, 32), 1.8
    if value == 0:
        return (0, 1, 2, 4, 8, 16, 32, 64), 1.2
    return _POWERS, 1.6 if has & {"block", "blocks", "tile", "tiles", "chunk", "grain"} else 1.3


_HINT = re.compile(r"\btune(?:\s+(?P<name>\w+))?\s*:\s*(?P<values>.+?)\s*(?:\*/)?\s*$")
_HINT_VALUE = re.compile(r"""\s*(?P<value>"[^"]*"|'[^']*'|[^,"'\s][^,"']*?)\s*(?:,|$)""")


_KEPT = "no"


def is_kept(comment: str, name: str) -> bool:
    """Whether a comment asks to leave this value as it is (`tune: no`, or `tune NAME: no`)."""
    match = _HINT.search(comment)
    return match is not None and match["name"] in (None, name) and match["values"] == _KEPT


def hinted_ladder(comment: str, name: str, text: str) -> Ladder | None:
    """The ladder that a comment asks for (`tune: 1, 2, 4`, or `tune NAME: 1, 2, 4`), or None where it asks for none."""
    match = _HINT.search(comment)
    if match is None or match["name"] not in (None, name):
        return None
    values, position, body = [], 0, match["values"]
    while position < len(body):
        item = _HINT_VALUE.match(body, position)
        if item is None:
            return None
        values.append(item["value"])
        position = item.end()
    values = list(dict.fromkeys(values))
    if text not in values:
        values.insert(0, text)
    if len(values) < 2:
        return None
    ordered = all(_NUMBER.fullmatch(value) for value in values)
    if ordered:
        values.sort(key=lambda value: int(_NUMBER.fullmatch(value)["value"]))  # type: ignore[index]
    inferred = integer_ladder(name, text)
    return Ladder(tuple(values), ordered=ordered, leverage=max(2.0, inferred.leverage if inferred is not None else 0.0))
