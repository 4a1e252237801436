"""What compute-sanitizer wrote about a process, read strictly.

The tool runs in the candidate's sandbox, and its lines come mixed with what the candidate prints: data, and perhaps made up. A
fault that stands there is believed, since nobody gains by inventing it; that none stands there proves nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MOST_LINES = 100_000
"""Lines that are read."""
MOST_FAULTS = 8
"""Faults that are told one by one; all are counted."""

_MARK = "========="
_STARTED = re.compile(r"COMPUTE-SANITIZER")
_ACCESS = re.compile(r"Invalid __(global|shared|local)__ (read|write|atomic) of size (\d{1,9}) bytes?")
_RACE = re.compile(
    r"(?:Error|Warning): Race reported between (Read|Write) access at (.{1,400}?) and (Read|Write) access at (.{1,400})$"
)
_RACE_BEGINS = re.compile(r"(?:Error|Warning): Race reported between (Read|Write) access at (.{1,400})$")
_RACE_GOES_ON = re.compile(r"and (Read|Write) access at (.{1,400})$")
_LAUNCH = re.compile(
    r'Program hit (\w{1,80}) \(error \d{1,6}\) due to "(.{1,200}?)" on CUDA API call to (\w*Launch\w*)'
)
_AT = re.compile(r"at (.{1,400}?)(?: in \S{1,300}:\d{1,9})?$")
_THREAD = re.compile(r"by (thread \(\d{1,9},\d{1,9},\d{1,9}\) in block \(\d{1,9},\d{1,9},\d{1,9}\))")
_PLACE = re.compile(r"(?:Address|Access (?:at|to)) 0x[0-9a-fA-F]{1,16} is (misaligned|out of bounds)")
_SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d{1,9}) errors?|RACECHECK SUMMARY: (\d{1,9}) hazards? displayed)")
_TROUBLE = re.compile(r"(?:Error|Internal Sanitizer Error|FATAL ERROR|Fatal): (.{1,300})$")


@dataclass(slots=True)
class Fault:
    """One fault, in words."""

    code: str
    """"memory_fault", "data_race" or "launch_failed"."""
    what: str
    where: str = ""
    who: str = ""
    place: str = ""

    def describe(self) -> str:
        """E.g. "invalid global read of 4 bytes at rows+0x160 by thread (31,0,0) in block (4,0,0), out of bounds"."""
        told = self.what + (f" at {self.where}" if self.where else "") + (f" by {self.who}" if self.who else "")
        return told + (f", {self.place}" if self.place else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sanitized:
    """What one run of the tool came to."""

    faults: tuple[Fault, ...]
    """The first few that differ."""
    count: int
    """Of all."""
    complete: bool
    """It watched the process to its end."""
    trouble: str
    """What it says of itself; empty for nothing."""


def read_sanitizer(output: str) -> Sanitized:
    """The faults in what a sanitized process and the tool around it wrote."""
    faults: dict[str, Fault] = {}
    current: Fault | None = None
    seen, summed, started, complete, trouble = 0, 0, False, False, ""
    for line in output.split("\n")[:MOST_LINES]:
        if not line.startswith(_MARK):
            continue
        text = line.removeprefix(_MARK).strip()
        found = _begun(text)
        if found is not None:
            _keep(faults, current)
            current, seen = found, seen + 1
        elif summary := _SUMMARY.search(text):
            complete, summed = True, max(summed, int(summary[1] or summary[2]))
        elif _STARTED.search(text):
            started = True
        elif current is not None and text:
            _add(current, text)
        elif current is None and not trouble and (said := _TROUBLE.match(text)):
            trouble = said[1]
    _keep(faults, current)
    # Of API errors, which the summary counts too, only those of launches are faults here.
    count = max(seen, summed) if seen else 0
    return Sanitized(
        faults=tuple(list(faults.values())[:MOST_FAULTS]), count=count, complete=started and complete, trouble=trouble
    )


def _begun(text: str) -> Fault | None:
    """The fault that this line begins."""
    if access := _ACCESS.match(text):
        return Fault("memory_fault", f"invalid {access[1]} {access[2]} of {access[3]} bytes")
    if race := _RACE.match(text):
        return Fault(
            "data_race", f"a race between a {race[1].lower()} at {race[2]} and a {race[3].lower()} at {race[4]}"
        )
    if race := _RACE_BEGINS.match(text):
        return Fault("data_race", f"a race between a {race[1].lower()} at {race[2]}")
    if launch := _LAUNCH.match(text):
        return Fault("launch_failed", f"{launch[3]} failed, and nobody looked: {launch[2]} ({launch[1]})")
    return None


def _add(fault: Fault, text: str) -> None:
    """What a further line says of it."""
    if fault.code == "data_race":
        if (race := _RACE_GOES_ON.match(text)) and " and a " not in fault.what:
            fault.what += f" and a {race[1].lower()} at {race[2]}"
    elif fault.code == "memory_fault":
        if not fault.where and (at := _AT.match(text)):
            fault.where = at[1]
        elif not fault.who and (thread := _THREAD.match(text)):
            fault.who = thread[1]
        elif not fault.place and (place := _PLACE.match(text)):
            fault.place = place[1]


def _keep(faults: dict[str, Fault], fault: Fault | None) -> None:
    """One of each kind and place: a thousand threads make the same mistake."""
    if fault is not None and len(faults) < MOST_FAULTS:
        faults.setdefault(f"{fault.code} {fault.what} {fault.where}", fault)
