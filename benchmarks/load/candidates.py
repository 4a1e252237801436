"""Small candidates for the problem that every load asks about, each with the verdict that it deserves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from fuzzing.messages import CANDIDATE

from kernelevo_api.types import Verdict

if TYPE_CHECKING:
    import random

Mix: TypeAlias = Mapping[Verdict, float]
"""Shares of candidates, by what they deserve."""

MADE_UP: Mix = {Verdict.PASSED: 0.8, Verdict.OUTPUT_MISMATCH: 0.15, Verdict.COMPILE_ERROR: 0.05}
"""For a simulated device, whose verdicts cost the same: it looks for the word BROKEN, and sees nothing that does not parse."""
REAL: Mix = {
    Verdict.PASSED: 0.06,
    Verdict.OUTPUT_MISMATCH: 0.4,
    Verdict.RUNTIME_ERROR: 0.14,
    Verdict.LOAD_ERROR: 0.12,
    Verdict.WRONG_INTERFACE: 0.12,
    Verdict.INPUT_MUTATED: 0.12,
    Verdict.COMPILE_ERROR: 0.04,
}
"""For a device that judges: most end before anything is timed, so that hundreds take minutes."""

_BODY = "return x + 1"
_SOURCES = {
    Verdict.PASSED: CANDIDATE,
    Verdict.OUTPUT_MISMATCH: CANDIDATE.replace(_BODY, "return x + 2  # BROKEN"),
    Verdict.RUNTIME_ERROR: CANDIDATE.replace(_BODY, "raise ValueError(x.shape)"),
    Verdict.LOAD_ERROR: f"import a_module_that_is_not_there\n{CANDIDATE}",
    Verdict.WRONG_INTERFACE: CANDIDATE.replace(_BODY, "return (x + 1).double()"),
    Verdict.INPUT_MUTATED: CANDIDATE.replace(_BODY, "return x.add_(1)"),
    Verdict.COMPILE_ERROR: CANDIDATE.replace("class ModelNew", "class class"),
}


def draw_source(rng: random.Random, mix: Mix, mark: str) -> tuple[Verdict, str]:
    """A verdict, and a source of its own that deserves it.

    Args:
        mark: tells the source apart from every other one.
    """
    deserved = rng.choices(list(mix), list(mix.values()))[0]
    return deserved, f"{_SOURCES[deserved]}# {mark}\n"
