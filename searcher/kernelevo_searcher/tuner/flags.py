"""Lists of compiler flags in a Python source, as parameters.

A list has an optimisation level, switches, and macros (`-DNAME=8`); whatever else stands in it is kept where it is. Flags
that may change results (`-ffast-math`) are choices like any other: the evaluator decides whether the outputs still pass.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from kernelevo_searcher.tuner.ladders import integer_ladder
from kernelevo_searcher.tuner.space import Parameter

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FlagElement", "FlagSite", "host_switches"]

_LEVEL = re.compile(r"-O(?:[0-3sz]|fast)?")
_MACRO = re.compile(r"-D(?P<name>\w+)=(?P<value>[0-9]+)")
_LEVELS = ("-O2", "-O3")
OFF, ON = "off", "on"

_NATIVE = "-march=native"
_HOST_SWITCHES = {_NATIVE: 3.2, "-ffast-math": 2.6, "-funroll-loops": 1.0}
_DEVICE_SWITCHES = {"--use_fast_math": 2.2}


def host_switches(openmp: bool) -> dict[str, float]:
    """Switches of a C++ compiler for the CPU, and their leverage."""
    return {**_HOST_SWITCHES, "-fopenmp": 2.8} if openmp else _HOST_SWITCHES


@dataclass(frozen=True, slots=True)
class FlagElement:
    """One element of the list."""

    text: str
    """As it stands in the source."""
    flag: str | None
    """What the literal says; None for what is no plain string."""


@dataclass(frozen=True)
class FlagSite:
    """A list of flags; or the place where one may be put, when `text` is empty."""

    start: int
    end: int
    text: str
    """The whole stretch as it stands."""
    name: str
    """What the source calls the list."""
    lead: str
    """Text before the bracket, part of the stretch."""
    elements: tuple[FlagElement, ...]
    brackets: tuple[str, str] = ("[", "]")
    multiline_indent: str | None = None
    """Indentation of the elements where each has a line of its own."""
    closing_indent: str = ""
    device: bool = False
    """For the device's compiler rather than the host's."""
    openmp: bool = False
    vectors: bool = False
    """The source names vector instructions, for which the compiler has to know the processor."""
    unread: frozenset[str] = frozenset()
    """Macros that no code names."""

    @property
    def macros(self) -> list[str]:
        """Names that the list defines."""
        found = (_MACRO.fullmatch(element.flag) for element in self.elements if element.flag is not None)
        return [macro["name"] for macro in found if macro is not None]

    @property
    def _switches(self) -> dict[str, float]:
        switches = _DEVICE_SWITCHES if self.device else host_switches(self.openmp)
        if self.vectors and any(element.flag == _NATIVE for element in self.elements):
            return {switch: leverage for switch, leverage in switches.items() if switch != _NATIVE}
        return switches

    @cached_property
    def _levels(self) -> list[int]:
        return [
            index
            for index, element in enumerate(self.elements)
            if element.flag is not None and _LEVEL.fullmatch(element.flag)
        ]

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """What may be changed in this list."""
        found = []
        if len(self._levels) <= 1 and (self._levels or not self.device):
            current = self.elements[self._levels[0]].flag if self._levels else ""
            assert current is not None
            values = _LEVELS if current in _LEVELS else (current, *_LEVELS)
            found.append(Parameter(f"{self.name}:-O", values, ordered=True, leverage=3.4))
        given = {element.flag for element in self.elements}
        for switch, leverage in self._switches.items():
            # Whoever gave a switch had a reason: taking it away comes late.
            expected = 0.6 if switch in given else leverage
            found.append(Parameter(f"{self.name}:{switch}", (OFF, ON), ordered=False, leverage=expected))
        for element in self.elements:
            macro = _MACRO.fullmatch(element.flag) if element.flag is not None else None
            read = macro is not None and macro["name"] not in self.unread
            ladder = integer_ladder(macro["name"], macro["value"]) if macro is not None and read else None
            name = f"{self.name}:-D{macro['name']}" if macro is not None else ""
            if ladder is not None and all(parameter.name != name for parameter in found):
                found.append(Parameter(name, ladder.values, ladder.ordered, ladder.leverage))
        return tuple(found)

    @cached_property
    def current(self) -> Mapping[str, str]:
        values = {}
        flags = {element.flag for element in self.elements}
        for parameter in self.parameters:
            what = parameter.name.removeprefix(f"{self.name}:")
            if what == "-O":
                values[parameter.name] = self.elements[self._levels[0]].flag or "" if self._levels else ""
            elif what.startswith("-D"):
                values[parameter.name] = next(
                    flag.removeprefix(f"{what}=") for flag in flags if flag and flag.startswith(f"{what}=")
                )
            else:
                values[parameter.name] = ON if what in flags else OFF
        return values

    @cached_property
    def skeleton(self) -> str:
        names = {parameter.name for parameter in self.parameters}
        fixed = []
        for element in self.elements:
            flag = element.flag
            if flag is None:
                fixed.append(element.text)
            elif f"{self.name}:{flag}" in names or (_LEVEL.fullmatch(flag) and f"{self.name}:-O" in names):
                continue
            elif (macro := _MACRO.fullmatch(flag)) and f"{self.name}:-D{macro['name']}" in names:
                fixed.append(f"-D{macro['name']}=")
            else:
                fixed.append(flag)
        return "\0".join([self.name, *fixed])

    def render(self, values: Mapping[str, str]) -> str:
        if all(values[name] == value for name, value in self.current.items()):
            return self.text
        elements = self._elements(values)
        if not elements and not self.text:
            return ""
        opening, closing = self.brackets
        if self.multiline_indent is not None and elements:
            lines = "".join(f"{self.multiline_indent}{element},\n" for element in elements)
            return f"{self.lead}{opening}\n{lines}{self.closing_indent}{closing}"
        comma = "," if len(elements) == 1 and opening == "(" else ""
        return f"{self.lead}{opening}{', '.join(elements)}{comma}{closing}"

    def _elements(self, values: Mapping[str, str]) -> list[str]:
        chosen = {name.removeprefix(f"{self.name}:"): value for name, value in values.items() if name in self.current}
        rendered = []
        if "-O" in chosen and not self._levels and chosen["-O"]:
            rendered.append(f'"{chosen["-O"]}"')
        present = set()
        for element in self.elements:
            flag = element.flag
            if flag is None:
                rendered.append(element.text)
            elif _LEVEL.fullmatch(flag) and "-O" in chosen:
                if chosen["-O"] == flag:
                    rendered.append(element.text)
                elif chosen["-O"]:
                    rendered.append(f'"{chosen["-O"]}"')
            elif flag in self._switches:
                if chosen[flag] == ON and flag not in present:
                    rendered.append(element.text)
                present.add(flag)
            elif (macro := _MACRO.fullmatch(flag)) and f"-D{macro['name']}" in chosen:
                value = chosen[f"-D{macro['name']}"]
                rendered.append(element.text if value == macro["value"] else f'"-D{macro["name"]}={value}"')
            else:
                rendered.append(element.text)
        rendered += [f'"{switch}"' for switch in self._switches if chosen.get(switch) == ON and switch not in present]
        return rendered
