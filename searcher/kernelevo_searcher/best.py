"""The best kernel of a run, as a module that stands on its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelevo_api.types import Effort
from kernelevo_searcher.candidates import elsewhere_line, proves_speedup
from kernelevo_searcher.state import replay
from kernelevo_searcher.store import RunStore

if TYPE_CHECKING:
    from pathlib import Path

    from kernelevo_api.types import Ratio
    from kernelevo_searcher.state import RunState

__all__ = ["BestKernel", "best_kernel", "write_best"]

BEST_FILE = "best.py"
_NOBODY = frozenset({"", "problem", "tuner"})
"""Proposers that add nothing of their own to the problem's source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BestKernel:
    """The best of a run, as a module that stands on its own."""

    candidate_id: str
    source: str
    """With a comment at its head that says where it comes from."""
    digest: str
    """SHA-256 of the source without that comment."""
    speedup: Ratio | None
    verified: bool
    """Its speedup was measured anew at the end of the run."""

    @property
    def proved(self) -> bool:
        """It was verified, and the whole interval of its speedup lies above 1."""
        return self.verified and proves_speedup(self.speedup)


def best_kernel(run_dir: Path) -> BestKernel | None:
    """The verified kernel of a finished run, or else the best so far; None where nothing passed yet.

    Raises:
        RunNotFound: there is no run in this folder.
    """
    with RunStore.open(run_dir, read_only=True) as store:
        state = replay(store.records())
        verified = state.finished is not None and state.finished.best_id is not None
        if state.finished is not None and verified:
            best_id, speedup = state.finished.best_id, state.finished.speedup
        else:
            best_id = state.best_id
            speedup = state.best.speedup if state.best is not None else None
        if best_id is None:
            return None
        digest = state.candidates[best_id].proposed.source_digest
        source = store.text(digest)
    header = _header(state, best_id, speedup, verified=verified)
    return BestKernel(
        candidate_id=best_id, source=f"{header}\n{source}", digest=digest, speedup=speedup, verified=verified
    )


def _header(state: RunState, best_id: str, speedup: Ratio | None, *, verified: bool) -> str:
    assert state.started is not None
    candidate = state.candidates[best_id]
    device = state.connected.device if state.connected is not None else None
    evaluation = candidate.evaluations.get(Effort.FINAL) if verified else candidate.evaluation
    measured = (
        f"{speedup.value:.2f}x [{speedup.low:.2f}, {speedup.high:.2f}] over {state.settings.baseline.value}"
        if speedup is not None
        else "not measured"
    )
    lines = [
        f"Found by KernelEvo {state.started.version} for the problem {state.started.problem_name}.",
        f"{_what_was_measured(speedup, verified)}: {measured}.",
        f"Device: {device.name} {device.architecture}." if device is not None else "",
        *(f"Beside it: {elsewhere_line(kind, found)}." for kind, found in state.verified_elsewhere()),
        f"Run {state.started.run_id}, candidate {best_id}, problem {state.started.problem_digest[:16]}, "
        f"candidate source {candidate.proposed.source_digest[:16]}"
        + (f", evaluation {evaluation.evaluation_id}." if evaluation is not None and evaluation.evaluation_id else "."),
        _licence_note(state, best_id),
    ]
    # One line each, whatever the names hold: a line break would end the comment.
    return "\n".join("# " + " ".join(line.split()) for line in lines if line)


def _licence_note(state: RunState, best_id: str) -> str:
    """Whose work is in it, by the kernels that led to it."""
    authors: dict[str, None] = {}
    todo, seen = [best_id], set[str]()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        proposed = state.candidates[name].proposed
        if proposed.proposer not in _NOBODY:
            authors[proposed.proposer] = None
        todo += [each for each in (proposed.parent_id, proposed.other_id) if each is not None]
    written = "your own kernel" if "user" in authors else ""
    models = ", ".join(author for author in authors if author != "user")
    by = " and ".join(part for part in (written, f"replies of {models}" if models else "") if part)
    return (
        f"Licence: made from the problem{f', {by}' if by else ''}; the terms of those hold. KernelEvo adds none of its own, and "
        "gives no warranty."
    )


def _what_was_measured(speedup: Ratio | None, verified: bool) -> str:
    if not verified:
        return "Speedup so far, not verified"
    return "Verified speedup" if proves_speedup(speedup) else "No speedup was proved; verified"


def write_best(run_dir: Path) -> Path | None:
    """Write the best kernel into the run's folder; None where there is none."""
    best = best_kernel(run_dir)
    if best is None:
        return None
    path = run_dir / BEST_FILE
    path.write_text(best.source, encoding="utf-8")
    return path
