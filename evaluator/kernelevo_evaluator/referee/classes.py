"""Classes of inputs that a candidate is checked on. Each has an error budget of its own."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InputClass:
    """The problem's own inputs, floating ones as `x * scale + shift`."""

    name: str
    scale: float = 1.0
    shift: float = 0.0


DECLARED = InputClass("declared")
SCALED = InputClass("scaled x8 + 0.5", 8.0, 0.5)
"""Used where the audited reference stays finite on it."""


def shape_class(sizes: str) -> str:
    """The class of a declared further shape, given as JSON."""
    return f"shape {sizes}"


def sizes_of(text: str) -> dict[str, int]:
    """A declared shape: names of module constants and their values."""
    return {str(name): int(value) for name, value in json.loads(text).items()}
