"""Texts for terminals: none of them can command one, and figures are written alike everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernelevo_api.types import Ratio

__all__ = ["one_line", "plain", "ratio_text"]


def plain(text: str) -> str:
    """The text without control characters, save line ends and tabs."""
    return "".join(
        character if character.isprintable() or character in "\n\t" else "\N{REPLACEMENT CHARACTER}"
        for character in text
    )


def one_line(text: str, longest: int) -> str:
    """The text as one plain line of at most so many characters."""
    joined = " ".join(plain(text).split())
    return joined if len(joined) <= longest else f"{joined[: longest - 1]}…"


def ratio_text(ratio: Ratio) -> str:
    """A ratio with its interval, e.g. "1.93x [1.88, 1.97]"."""
    return f"{ratio.value:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}]"
