"""What an attack is: source that runs in a sandbox, tries one thing, and says whether it got it.

An attack's source may use `given`, a dictionary of things of the host that are there to be taken, and must call `got(what)` once
it has what it is after, or `refused(why)`. What ends it (a limit, a signal) counts by how the sandbox ended. Where the host can
see for itself, the attack's word is not taken for it: `Attack.seen` looks from outside afterwards.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kernelevo_sandbox import EndKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kernelevo_sandbox import Ending


class Result(enum.Enum):
    """What came of an attack on one backend."""

    CONTAINED = "contained"
    """It did not get what it was after."""
    LIMITED = "limited"
    """It was ended, or held, at a limit."""
    NOT_CONTAINED = "NOT CONTAINED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One attack."""

    name: str
    kind: str
    source: str
    limits: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `kernelevo_sandbox.Limits` that differ from the usual ones."""
    ends: frozenset[EndKind] = frozenset()
    """Ends by a limit that answer this attack."""
    seen: Callable[[Mapping[str, Any]], bool] | None = None
    """Whether its effect is seen on the host afterwards."""
    control: bool = True
    """Whether it succeeds where nothing isolates: run there, so that a broken attack cannot pass for a contained one."""


PRELUDE = """
import ctypes, errno, json, mmap, os, resource, signal, socket, struct, sys, threading, time
given = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
def got(what): print("GOT", str(what)[:200], flush=True); os._exit(0)
def refused(why): print("REFUSED", str(why)[:200], flush=True); os._exit(0)
def call(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    return result, errno.errorcode.get(ctypes.get_errno(), ctypes.get_errno())
def denied(number, *arguments):
    result, error = call(number, *arguments)
    refused(error) if result == -1 and error in ("EPERM", "ENOSYS", "EACCES") else got((result, error))
try:
"""


def program(attack: Attack) -> str:
    """The whole source: an exception of the operating system is a refusal."""
    body = "\n".join(f"    {line}" for line in attack.source.strip("\n").splitlines())
    return f"{PRELUDE}{body}\nexcept OSError as failure:\n    refused(failure)\nrefused('nothing came of it')\n"


def judge(attack: Attack, ending: Ending, given: Mapping[str, Any]) -> tuple[Result, str]:
    """What came of it, and the evidence."""
    if attack.seen is not None and attack.seen(given):
        return Result.NOT_CONTAINED, "its effect is seen on the host"
    if ending.kind in attack.ends:
        return Result.LIMITED, ending.detail or ending.kind.value
    if ending.kind is EndKind.FORBIDDEN_CALL:
        return Result.CONTAINED, "ended at a forbidden call"
    said = ending.stdout.text().strip().splitlines()
    last = said[-1] if said else ""
    if ending.kind is EndKind.EXITED and ending.exit_code == 0 and last.startswith("REFUSED"):
        return (Result.LIMITED if attack.ends else Result.CONTAINED), last.removeprefix("REFUSED ")
    return (
        Result.NOT_CONTAINED,
        f"{ending.kind.value} {ending.exit_code} {ending.detail}: {last} {ending.stderr.text()[-300:]}",
    )
