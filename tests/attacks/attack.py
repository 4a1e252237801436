"""What an attack is, and how it is judged: a program that runs in a sandbox, or what a candidate hands to `load_inline`.

A program's source may use `given`, a dictionary of things of the host that are there to be taken, and must call `got(what)` once
it has what it is after, or `refused(why)`. What ends it (a limit, a signal) counts by how the sandbox ended. Where the host can
see for itself, the attack's word is not taken for it: `seen` looks from outside afterwards.

A build has no words of its own. What it took is looked for in all that comes out of it: the compiler's messages, the shared
object, and that of the next build.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kernelevo_api.types import LimitKind, Verdict
from kernelevo_evaluator.lanes.loading import build_failure
from kernelevo_sandbox import EndKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kernelevo_evaluator.languages.builder import BuildResult
    from kernelevo_sandbox import Ending


class Result(enum.Enum):
    """What came of an attack on one backend."""

    CONTAINED = "contained"
    """It did not get what it was after."""
    LIMITED = "limited"
    """It was ended, or held, at a limit."""
    NOT_CONTAINED = "NOT CONTAINED"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result, and what it rests on."""

    result: Result
    evidence: str
    verdict: Verdict | None = None
    """What a candidate with this build is told; `None`: no build, or one that gave an object."""
    taken: bool = False
    """It was seen to have what it was after: what a control must show. An answer that is merely wrong does not count."""

    @property
    def shown(self) -> str:
        """For the table."""
        verdict = f", `{self.verdict.name}`" if self.verdict is not None and not self.taken else ""
        return f"{self.result.value}{verdict}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One attack by a program."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildAttack:
    """One attack by a build."""

    name: str
    asked: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    """Fields of a `BuildRequest`, by what there is to be taken."""
    after: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    """The next candidate's build, on which this one is an attack."""
    answers: frozenset[Verdict] = frozenset({Verdict.COMPILE_ERROR})
    """Verdicts that answer it."""
    builds: bool = False
    """An object may come of it: there is no harm in it."""
    tells: Callable[[Mapping[str, Any]], tuple[str, ...]] = lambda given: (given["secret_text"],)
    """Texts that come out of a build alone that got what it was after."""
    seen: Callable[[Mapping[str, Any]], bool] | None = None
    control: bool = True
    cuda: bool = False
    """It is nvcc that builds it."""
    seconds: float = 20.0
    memory_bytes: int = 512 << 20
    kind: str = "build"


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


def judge(attack: Attack, ending: Ending, given: Mapping[str, Any]) -> Outcome:
    """What came of a program."""
    if attack.seen is not None and attack.seen(given):
        return Outcome(Result.NOT_CONTAINED, "its effect is seen on the host", taken=True)
    if ending.kind in attack.ends:
        return Outcome(Result.LIMITED, ending.detail or ending.kind.value)
    if ending.kind is EndKind.FORBIDDEN_CALL:
        return Outcome(Result.CONTAINED, "ended at a forbidden call")
    said = ending.stdout.text().strip().splitlines()
    last = said[-1] if said else ""
    if ending.kind is EndKind.EXITED and ending.exit_code == 0 and last.startswith("REFUSED"):
        return Outcome(Result.LIMITED if attack.ends else Result.CONTAINED, last.removeprefix("REFUSED "))
    return Outcome(
        Result.NOT_CONTAINED,
        f"{ending.kind.value} {ending.exit_code} {ending.detail}: {last} {ending.stderr.text()[-300:]}",
        taken=last.startswith("GOT"),
    )


def judge_build(
    attack: BuildAttack, result: BuildResult, following: BuildResult | None, given: Mapping[str, Any]
) -> Outcome:
    """What came of a build, and of the next one. The evidence holds nothing of what was taken."""
    if attack.seen is not None and attack.seen(given):
        return Outcome(Result.NOT_CONTAINED, "its effect is seen on the host", taken=True)
    for one in (result, following):
        if one is not None and any(text.encode() in _all_of(one) for text in attack.tells(given)):
            return Outcome(Result.NOT_CONTAINED, "what it was after is in what came out of a build", taken=True)
    if following is not None and (following.path is None or following.cached):
        return Outcome(Result.NOT_CONTAINED, f"the next candidate's build was not its own: {following.log_text[-300:]}")
    if result.path is not None:
        told = "built, without what it was after" if attack.builds else f"built: {result.log_text[-300:]}"
        return Outcome(Result.CONTAINED if attack.builds else Result.NOT_CONTAINED, told)
    failure = build_failure(result)
    if failure.verdict not in attack.answers:
        return Outcome(Result.NOT_CONTAINED, f"the wrong answer: {failure.message}", failure.verdict)
    limit = f" ({failure.limit.value})" if isinstance(failure.limit, LimitKind) else ""
    kept = Result.LIMITED if failure.limit is not None else Result.CONTAINED
    return Outcome(kept, f"{failure.message}{limit}", failure.verdict)


def _all_of(result: BuildResult) -> bytes:
    parts = [result.log_text, *(f"{one.file} {one.message} {one.excerpt}" for one in result.diagnostics)]
    return "\n".join(parts).encode() + (result.path.read_bytes() if result.path is not None else b"")
