"""How an evaluation ends inside the referee."""

from __future__ import annotations

from dataclasses import dataclass, field

# At run time too: the server decodes an `Outcome` by these types.
from kernelevo_api.types import (
    Artefact,
    CheckedOn,
    Correctness,
    DeepCheck,
    Finding,
    LimitKind,
    Profile,
    RaisedError,
    SandboxEnding,
    Stage,
    StageTime,
    Timing,
    Verdict,
)


class Decided(Exception):
    """A verdict other than PASSED was reached; raised where it is found and caught once, at the top."""

    def __init__(
        self,
        verdict: Verdict,
        stage: Stage,
        message: str,
        *,
        limit: LimitKind | None = None,
        error: RaisedError | None = None,
        ending: SandboxEnding | None = None,
        correctness: Correctness | None = None,
        timing: Timing | None = None,
        code: str = "",
    ) -> None:
        super().__init__(message)
        self.verdict = verdict
        self.stage = stage
        self.message = message
        self.limit = limit
        self.error = error
        self.ending = ending
        self.correctness = correctness
        self.timing = timing
        self.code = code
        """Of a problem's fault: what a person would look for, in one word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the referee found: the part of an `Evaluation` that is its own."""

    verdict: Verdict
    stage: Stage
    message: str
    limit: LimitKind | None = None
    error: RaisedError | None = None
    sandbox_ending: SandboxEnding | None = None
    profile: Profile | None = None
    correctness: Correctness | None = None
    timing: Timing | None = None
    checked_on: CheckedOn | None = None
    code: str = ""
    """Of a problem's fault: in one word."""
    findings: tuple[Finding, ...] = ()
    deep_checks: tuple[DeepCheck, ...] = ()
    compiled: tuple[Artefact, ...] = ()
    """By Triton, on the device."""
    stages: tuple[StageTime, ...] = field(default=())
