"""A build as a plain value: files, the commands that compile each unit, the one that links. Each language makes its own."""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

OBJECT = "object.so"
"""What the link command writes, in the build's folder."""
LOG_BYTES = 512 << 10
"""What the compilers say beyond this is not shown: a template's errors may fill megabytes, and are no reason to end a build."""


class Unsupported(ValueError):
    """The request cannot be built; the message tells its author why."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One translation unit. Its commands are tried in order until one succeeds; what the last one said is its log."""

    name: str
    commands: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """All that goes into a shared object. Paths are relative to the build's folder."""

    files: Mapping[str, str]
    """Text of each file by its path."""
    units: tuple[Unit, ...]
    """Compiled side by side."""
    link: tuple[str, ...] = ()
    """Empty where the only unit writes the shared object itself."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """The author's texts by the names that the compilers' messages use."""
    versions: tuple[str, ...] = ()
    """Of every tool and library that has a say in the object."""
    environment: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Path, ...] = ()
    """Folders of the host that its tools lie in."""

    @property
    def digest(self) -> str:
        """Names the object: equal for equal files, commands and versions."""
        content = [sorted(self.files.items()), [(u.name, u.commands) for u in self.units], self.link, self.versions]
        return hashlib.sha256(msgspec.msgpack.encode(content)).hexdigest()

    def script(self) -> str:
        """For a POSIX shell in the build's folder, which holds the files: 0 when the object is there; logs go to stdout."""
        lines = [f"({_tried(unit)}) >{unit.name}.log 2>&1 & {unit.name}=$!" for unit in self.units]
        lines += [f"wait ${unit.name}; {unit.name}=$?" for unit in self.units]
        # Names as their author wrote them, where binutils can tell.
        demangle = "if command -v c++filt >/dev/null; then c++filt; else cat; fi"
        lines.append(
            f"cat {' '.join(f'{unit.name}.log' for unit in self.units)} | {{ {demangle}; }} | head -c {LOG_BYTES}"
        )
        lines += [f"[ ${unit.name} -eq 0 ] || exit ${unit.name}" for unit in self.units]
        if self.link:
            lines.append(f"{shlex.join(self.link)} || exit")
        return "\n".join(lines) + "\n"


def _tried(unit: Unit) -> str:
    first, *others = (shlex.join(command) for command in unit.commands)
    text = first
    for other in others:
        # The failed attempt's messages are not the author's concern.
        text = f"{text} >{unit.name}.attempt 2>&1 && cat {unit.name}.attempt || {other}"
    return text
