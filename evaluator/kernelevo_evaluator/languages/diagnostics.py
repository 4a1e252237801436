"""What compilers say, as messages with the author's own lines: g++, CUDA's front end, the assembler and the linker.

A log is the author's to write (`#error`, `#line`, flags of a compiler): whatever stands there, reading it neither fails nor takes
long.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kernelevo_api.types import CapturedText, Diagnostic, KernelResources

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LOG_BYTES = 16 << 10
"""What is kept of a log."""
DIAGNOSTICS = 10
"""Messages kept of one build, errors first."""
KERNELS = 64
"""Kernels of one build whose resources are kept."""
_COLUMNS = 200
_AROUND = 2
_MESSAGE_CHARACTERS = 500

_GCC = re.compile(
    r"^(?P<file>[^\s:][^:]{0,400}):(?P<line>\d{1,9}):(?:(?P<column>\d{1,9}):)? "
    r"(?P<severity>fatal error|error|warning): (?P<message>.*)$"
)
_NVCC = re.compile(
    r"^(?P<file>[^\s(][^(]{0,400})\((?P<line>\d{1,9})\): "
    r"(?P<severity>catastrophic error|error|warning)(?: #[0-9A-Za-z-]{1,12})?: (?P<message>.*)$"
)
_PTXAS = re.compile(r"^ptxas (?P<severity>fatal|error|warning)\s*: (?P<message>.*)$")
_LINKER = re.compile(
    r"^\S*\bld: (?P<message>(?:.*: )?(?:undefined reference to|cannot find|multiple definition of) .*)$"
)
# The driver's own words, of what it ran or of what ended it. That the linker failed says nothing that the linker did not.
_DRIVER = re.compile(
    r"^(?:\S*/)?(?:g\+\+|c\+\+|cc1plus|nvcc)\s*:? "
    r"(?P<severity>fatal error|internal compiler error|error|fatal)\s*: (?P<message>.*)$"
)
# Its lines are those of a file that nobody sees.
_ASSEMBLER = re.compile(r"^\S+\.s:\d{1,9}: (?P<severity>Fatal error|Error|Warning): (?P<message>.*)$")
_UNDEFINED = re.compile(
    r"^\S+: in function .*(?P<message>undefined reference to .*)$|^.*: (?P<other>undefined reference to .*)$"
)

_PATTERNS = (_GCC, _NVCC, _PTXAS, _LINKER, _DRIVER, _ASSEMBLER)
_SAYS_NOTHING = ("collect2: error: ld returned", "compilation terminated")

_ENTRY = re.compile(r"^ptxas info\s*: Compiling entry function '(?P<name>.{1,4000})' for '\w+'$")
_FUNCTION = re.compile(r"^ptxas info\s*: Function properties for (?P<name>.{1,4000})$")
_SPILLS = re.compile(r"(\d{1,9}) bytes spill stores, (\d{1,9}) bytes spill loads")
_REGISTERS = re.compile(r"^ptxas info\s*: Used (\d{1,9}) registers(.*)$")
_SHARED = re.compile(r"(\d{1,12}) bytes smem")


def diagnostics(log: str, sources: Mapping[str, str]) -> list[Diagnostic]:
    """The errors and warnings in a log (the first few, errors first), with the lines around each.

    Args:
        sources: the author's texts by the name that the compilers know them by.
    """
    lines = {name: text.split("\n") for name, text in sources.items()}
    found: list[tuple[re.Match[str], str]] = []
    said = log.split("\n")
    for number, line in enumerate(said):
        match = next((one for pattern in _PATTERNS if (one := pattern.match(line)) is not None), None)
        if match is not None:
            found.append(
                (match, match["message"] + _continued(said, number) if match.re is _NVCC else match["message"])
            )
        elif "undefined reference" in line and len(line) < 4000 and (match := _UNDEFINED.match(line)):
            found.append((match, match["message"] or match["other"]))
    seen: set[tuple[str, str, str]] = set()
    result = []
    for match, message in sorted(found, key=lambda one: _severity(one[0]) != "error"):
        parts = match.groupdict()
        key = (parts.get("file") or "", parts.get("line") or "", message)
        if key in seen:  # CUDA's compiler reads a file twice, for the host and for the device
            continue
        seen.add(key)
        file, line_number = parts.get("file") or "", int(parts["line"]) if parts.get("line") else None
        result.append(
            Diagnostic(
                severity=_severity(match),
                message=message[:_MESSAGE_CHARACTERS],
                file=file[:_COLUMNS],
                line=line_number,
                column=int(parts["column"]) if parts.get("column") else None,
                excerpt=_excerpt(lines.get(file, []), line_number),
            )
        )
        if len(result) == DIAGNOSTICS:
            break
    return result


def _severity(match: re.Match[str]) -> str:
    said = match.groupdict().get("severity") or "error"
    return "warning" if said.lower() == "warning" else "error"


def last_words(log: str) -> str:
    """The last line of a log that says anything; empty without one."""
    lines = [line for line in log.splitlines() if line.strip() and not line.startswith(_SAYS_NOTHING)]
    return lines[-1][:_MESSAGE_CHARACTERS] if lines else ""


def _continued(said: list[str], number: int) -> str:
    """Further lines of a message of CUDA's front end, which it sets in deeper than the source line that follows."""
    more = ""
    for line in said[number + 1 : number + 7]:
        if not line.startswith("            ") or line.strip() == "^" or len(more) > _MESSAGE_CHARACTERS:
            break
        more += "; " + line.strip()
    return more


def _excerpt(own: list[str], number: int | None) -> str:
    if number is None:
        return ""
    return "\n".join(
        f"{n + 1:5d} {'>' if n + 1 == number else ' '} {own[n][:_COLUMNS]}"
        for n in range(max(0, number - 1 - _AROUND), min(len(own), number + _AROUND))
    )[:2000]


def kernel_resources(log: str) -> list[KernelResources]:
    """What the assembler says of each kernel: registers of a thread, static shared memory of a block, bytes that are spilled."""
    kernels: list[KernelResources] = []
    name, spills = "", None
    for line in log.split("\n"):
        if match := _ENTRY.match(line):
            name, spills = match["name"], None
        elif match := _FUNCTION.match(line):
            continue
        elif name and (match := _SPILLS.search(line[:400])):
            spills = int(match[1])
        elif name and (match := _REGISTERS.match(line[:400])):
            shared = _SHARED.search(match[2])
            kernels.append(
                KernelResources(
                    kernel=_short(name),
                    registers=int(match[1]),
                    shared_memory_bytes=int(shared[1]) if shared else 0,
                    spill_bytes=spills,
                )
            )
            name = ""
            if len(kernels) == KERNELS:
                break
    return kernels


def _short(name: str) -> str:
    """A kernel's name without the types of its parameters, which its source shows."""
    depth = 0
    for index in range(len(name) - 1, -1, -1):
        depth += (name[index] == ")") - (name[index] == "(")
        if depth == 0:
            return (name[:index] if name.endswith(")") else name)[:_COLUMNS]
    return name[:_COLUMNS]


def without_assembler_talk(log: str) -> str:
    """A log without what `kernel_resources` has read out of it."""
    lines = log.split("\n")
    kept: list[str] = []
    for line in lines:
        if line.startswith("ptxas info") or (_SPILLS.search(line[:400]) and "stack frame" in line):
            continue
        kept.append(line)
    return "\n".join(kept)


def captured(log: bytes, limit: int = LOG_BYTES) -> CapturedText:
    """A log with its middle left out where it is long."""
    if len(log) <= limit:
        return CapturedText(head=log.decode(errors="replace"), total_bytes=len(log))
    half = limit // 2
    return CapturedText(
        head=log[:half].decode(errors="replace"), tail=log[-half:].decode(errors="replace"), total_bytes=len(log)
    )


def marked(texts: Iterable[tuple[str, str]]) -> str:
    """One file of several texts, each under a `#line` mark, so that compilers speak of its name and its own lines."""
    return "".join(f'#line 1 "{name}"\n{text}\n' for name, text in texts)
