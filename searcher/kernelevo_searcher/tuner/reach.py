"""Which of a source's values reach its kernel: what nothing names is not worth an evaluation.

Names are counted where they are used, in Python and in the C of strings, comments left out; a value reaches the kernel if its
name is used anywhere but where it is defined. A default reaches it unless every launch gives that argument itself.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernelevo_searcher.csource import CTokenKind, tokenize_c

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Launch", "Reach"]

_WORD = re.compile(r"[^\W\d]\w*")


@dataclass(frozen=True, slots=True)
class Launch:
    """A call of a function, or a launch of a kernel: what it gives."""

    positional: int
    keywords: frozenset[str]
    unpacks: bool
    """It unpacks a list or a dict: what that holds is not known."""

    def gives(self, name: str, place: int) -> bool:
        """Whether the argument of this name, at this place, is surely given."""
        return name in self.keywords or (place < self.positional and not self.unpacks)


@dataclass(slots=True)
class Reach:
    """What was seen of one source."""

    used: Counter[str] = field(default_factory=Counter)
    defined: Counter[str] = field(default_factory=Counter)
    launches: dict[str, list[Launch]] = field(default_factory=dict)

    def see_c(self, text: str) -> None:
        """Count the names of a C text; its own definitions are told by `defines`."""
        self.used.update(token.text for token in tokenize_c(text) if token.kind is CTokenKind.IDENTIFIER)

    def see_text(self, text: str) -> None:
        """Count the words of any other text: it may be put together with code, or name what is replaced in it."""
        self.used.update(_WORD.findall(text))

    def see_names(self, names: Iterable[str]) -> None:
        """Count names of Python."""
        self.used.update(names)

    def defines(self, name: str) -> None:
        """A definition, where the name was counted once as well."""
        self.defined[name] += 1

    def named(self, name: str) -> bool:
        """Whether the name is used anywhere but where it is defined."""
        return self.used[name] > self.defined[name]

    def default(self, function: str, name: str, place: int) -> bool:
        """Whether the default of an argument is ever used, as far as can be told."""
        launches = self.launches.get(function, [])
        return not launches or not all(launch.gives(name, place) for launch in launches)
