"""A source, the parameters found in it, and how to write it with other values.

A site is a stretch of the source that holds the values of some parameters; rendering replaces sites and leaves every other
character as it is. Two sources that differ in sites alone have the same skeleton, and so share one space.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from kernelevo_searcher.events import ParameterValue, text_digest
from kernelevo_searcher.tuner.constraints import find_constraints

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kernelevo_searcher.tuner.constraints import Constraints

__all__ = ["Configuration", "Parameter", "Site", "TokenSite", "TunableSource"]

Configuration = tuple[str, ...]
"""A value for each parameter of a space, in the order of its parameters."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """Something in the source that may take another value."""

    name: str
    values: tuple[str, ...]
    ordered: bool
    """Neighbours among the values are expected to behave alike."""
    leverage: float = 1.0


class Site(Protocol):
    """A stretch of the source whose text follows from the values of parameters."""

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...

    @property
    def current(self) -> Mapping[str, str]:
        """The values as they stand, by name of the parameter."""
        ...

    @property
    def skeleton(self) -> str:
        """What does not depend on the values."""
        ...

    def render(self, values: Mapping[str, str]) -> str:
        """The text of the stretch for these values; the text as it stands for those that stand."""
        ...


@dataclass(frozen=True, slots=True)
class TokenSite:
    """One token that is the value of one parameter."""

    start: int
    end: int
    name: str
    text: str

    @property
    def current(self) -> Mapping[str, str]:
        return {self.name: self.text}

    @property
    def skeleton(self) -> str:
        return self.name

    def render(self, values: Mapping[str, str]) -> str:
        return values[self.name]


@dataclass(frozen=True)
class TunableSource:
    """A source and everything in it that may be changed."""

    source: str
    parameters: tuple[Parameter, ...]
    sites: tuple[Site, ...]
    """In the order of the source, without overlap."""

    @cached_property
    def constraints(self) -> Constraints:
        """What configurations have to keep to."""
        return find_constraints(self.source, [parameter.name for parameter in self.parameters])

    @cached_property
    def configuration(self) -> Configuration:
        """The values as they stand."""
        current = {name: value for site in self.sites for name, value in site.current.items()}
        return tuple(current[parameter.name] for parameter in self.parameters)

    @cached_property
    def skeleton(self) -> str:
        """A digest that all sources of this space share."""
        parts, position = [], 0
        for site in self.sites:
            parts += [self.source[position : site.start], f"\0{site.skeleton}\0"]
            position = site.end
        return text_digest("".join(parts) + self.source[position:])

    def render(self, configuration: Configuration) -> str:
        """The source with these values. Only sites whose values change are touched."""
        values = dict(zip((parameter.name for parameter in self.parameters), configuration, strict=True))
        parts, position = [], 0
        for site in self.sites:
            parts += [self.source[position : site.start], site.render(values)]
            position = site.end
        return "".join(parts) + self.source[position:]

    def contains(self, configuration: Configuration) -> bool:
        """Whether every value is one that its parameter may take."""
        return len(configuration) == len(self.parameters) and all(
            value in parameter.values for parameter, value in zip(self.parameters, configuration, strict=True)
        )

    def named(self, configuration: Configuration) -> tuple[ParameterValue, ...]:
        """The configuration as it goes into the log."""
        return tuple(
            ParameterValue(name=parameter.name, value=value)
            for parameter, value in zip(self.parameters, configuration, strict=True)
        )
