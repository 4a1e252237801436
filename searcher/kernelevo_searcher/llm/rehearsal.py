"""Requests of every shape that a run can make, with nothing real in them: what templates are tried on before a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelevo_api.types import (
    Capabilities,
    Device,
    DeviceKind,
    Evaluation,
    Language,
    ProblemPolicy,
    ProblemReport,
    Ratio,
    Timing,
    Verdict,
)
from kernelevo_searcher.memory.lessons import Recollection
from kernelevo_searcher.proposers import ActionKind, CandidateView, IdeaOutcome, ProposalRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["sample_requests"]

_SOURCE = "class ModelNew: pass\n"


def sample_requests() -> Iterator[ProposalRequest]:
    """For each action: with and without parent, examples, ledger and policy, on either kind of device, in each language."""
    passed = Evaluation(
        verdict=Verdict.PASSED,
        timing=Timing(speedup=Ratio(value=1.1, low=1.0, high=1.2), candidate_us=10.0, floor_us=5.0),
    )
    failed = Evaluation(verdict=Verdict.OUTPUT_MISMATCH, message="differs")
    good = CandidateView(id="c1", source=_SOURCE, idea="an idea", evaluation=passed, language=Language.TORCH)
    bad = CandidateView(id="c2", source=_SOURCE, evaluation=failed)
    ledger = tuple(
        IdeaOutcome(
            candidate_id=f"c{number}", parent_id="c1", action=ActionKind.REFINE, idea="an idea", outcome="1.10x"
        )
        for number in (3, 4)
    )
    for kind in DeviceKind:
        capabilities = Capabilities(devices=(Device(kind=kind, name="a device", healthy=True),))
        for language in (None, *Language):
            policy = ProblemPolicy(languages=(language,)) if language is not None else None
            report = ProblemReport(problem_digest="0", policy=policy)
            for action, parent in (
                (ActionKind.REWRITE, None),
                (ActionKind.REWRITE, good),
                (ActionKind.REFINE, good),
                (ActionKind.FIX, bad),
                (ActionKind.MERGE, good),
                (ActionKind.RESTART, None),
            ):
                for full in (False, True):
                    yield ProposalRequest(
                        action=action,
                        problem_source="class Model: pass\n",
                        report=report,
                        capabilities=capabilities,
                        parent=parent,
                        other=good if action is ActionKind.MERGE else None,
                        tried=ledger if full else (),
                        examples=(good,) if full else (),
                        failure=failed if action is ActionKind.FIX else None,
                        language=language,
                        tokens_left=1000 if full else None,
                        hints="a hint" if full else "",
                        lessons=(Recollection(technique="tiling", tried=1),) if full else (),
                    )
