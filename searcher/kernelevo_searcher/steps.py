"""What each decision of the policy comes to in the log: seeds, tuning, candidates, evaluations to send, and the end.

Shared by all who carry a run out, whether they call models and evaluators themselves or hand files to somebody who does. Nothing
here waits, sends or decides.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

from kernelevo_api.json import to_json
from kernelevo_api.types import Candidate, Effort, EvaluateRequest, Language
from kernelevo_searcher import policy
from kernelevo_searcher.dedupe import normal_digest
from kernelevo_searcher.events import (
    CandidateProposed,
    DuplicateSkipped,
    EvaluationFinished,
    EvaluationStarted,
    Event,
    NothingToTune,
    ParameterValue,
    RunFinished,
    StopDecided,
    VerificationFinished,
    VerificationStarted,
    text_digest,
)
from kernelevo_searcher.proposers import ActionKind
from kernelevo_searcher.tuner.tuner import Tuner

if TYPE_CHECKING:
    from kernelevo_api.types import DeviceRequirement, Evaluation, Ratio
    from kernelevo_searcher.journal import Journal

__all__ = ["SeedKernel", "Steps"]

REFERENCE_SEED = "reference"
"""Name of the seed that is the reference itself."""

SeedKernel = tuple[str, str, str]
"""Name, source, and who proposed it: "user" or "problem"."""


class Steps:
    """The steps of one run.

    Args:
        with_models: models may be asked, so that the reference itself is worth beginning from.
    """

    def __init__(self, journal: Journal, *, with_models: bool) -> None:
        self._journal = journal
        self._tuner = Tuner(journal.text)
        self._with_models = with_models
        self._seeds: tuple[SeedKernel, ...] | None = None

    @property
    def seeds(self) -> tuple[SeedKernel, ...]:
        """The kernels that were there before the run; none until the problem is registered."""
        if self._seeds is None and self._journal.state.registered is not None:
            self._seeds = self._find_seeds()
        return self._seeds or ()

    @property
    def seed_digests(self) -> tuple[str, ...]:
        """Digests of the sources of `seeds`."""
        return tuple(text_digest(source) for _, source, _ in self.seeds)

    def _find_seeds(self) -> tuple[SeedKernel, ...]:
        journal = self._journal
        assert journal.state.registered is not None
        report = journal.state.registered.report
        seeds = [(start.name, journal.text(start.source_digest), "user") for start in journal.started.start]
        seeds += [(seed.name, seed.source, "problem") for seed in report.seeds]
        allowed = report.policy.languages if report.policy is not None else ()
        if self._with_models and (not allowed or Language.TORCH in allowed):
            # A model may begin from it; the tuner would find nothing in it.
            wrapped = f"{journal.problem().source.rstrip()}\n\n\nclass ModelNew(Model):\n    pass\n"
            seeds.append((REFERENCE_SEED, wrapped, "problem"))
        return tuple(seeds)

    def take(self, action: policy.Action) -> bool:
        """Carry an action out, if it needs nobody but ourselves; whether it did."""
        match action:
            case policy.Stop(reason):
                self._journal.write(StopDecided(reason=reason))
            case policy.Verify(candidate_ids):
                self._journal.write(VerificationStarted(candidate_ids=candidate_ids))
            case policy.Seed(index):
                name, source, proposer = self.seeds[index]
                self.propose(source, ActionKind.SEED, proposer=proposer, idea=name)
            case policy.Propose(ActionKind.TUNE, parent_id):
                assert parent_id is not None
                self._tune(parent_id)
            case policy.Finish.FINISH:
                self._finish()
            case _:
                return False
        return True

    def propose(
        self,
        source: str,
        action: ActionKind,
        *,
        before: tuple[Event, ...] = (),
        texts: tuple[str, ...] = (),
        parent_id: str | None = None,
        other_id: str | None = None,
        idea: str = "",
        proposer: str = "",
        parameters: tuple[ParameterValue, ...] = (),
        call_id: str | None = None,
    ) -> None:
        """Log a candidate, or that it is one already, in one transaction with the events that led to it."""
        state = self._journal.state
        digest, normal = text_digest(source), normal_digest(source)
        known = state.by_normal_digest.get(normal)
        event: Event
        if known is not None:
            event = DuplicateSkipped(
                source_digest=digest,
                candidate_id=known,
                action=action,
                parent_id=parent_id,
                idea=idea,
                proposer=proposer,
                call_id=call_id,
            )
        else:
            event = CandidateProposed(
                candidate_id=f"c{len(state.candidates) + 1}",
                source_digest=digest,
                normal_digest=normal,
                action=action,
                parent_id=parent_id,
                other_id=other_id,
                idea=idea,
                proposer=proposer,
                parameters=parameters,
                call_id=call_id,
                language=state.settings.language if action is not ActionKind.SEED else None,
            )
        self._journal.write(*before, event, texts=(source, *texts))

    def _tune(self, parent_id: str) -> None:
        tuned = self._tuner.propose(self._journal.state, parent_id, self._journal.rng("tune"))
        if tuned is None:
            self._journal.write(NothingToTune(parent_id=parent_id))
            return
        self.propose(
            tuned.source,
            ActionKind.TUNE,
            parent_id=tuned.parent_id,
            idea=tuned.idea,
            proposer="tuner",
            parameters=tuned.parameters,
        )

    def _finish(self) -> None:
        state = self._journal.state
        verifying = state.verifying.candidate_ids if state.verifying is not None else ()
        best = policy.verified_best([state.candidates[candidate_id] for candidate_id in verifying])
        speedup: Ratio | None = None
        if best is not None:
            timing = best.evaluations[Effort.FINAL].timing
            assert timing is not None
            speedup = timing.confirmation or timing.speedup
        best_id = best.id if best is not None else None
        reason = state.stop.reason if state.stop is not None else ""
        self._journal.write(
            VerificationFinished(best_id=best_id, speedup=speedup),
            RunFinished(best_id=best_id, speedup=speedup, reason=reason),
        )

    # Evaluations.

    def start_evaluation(self, action: policy.Evaluate, evaluator: str) -> EvaluationStarted:
        """Log that an evaluation is about to be sent to this evaluator."""
        journal = self._journal
        if action.device is None:
            attempt, place = journal.state.attempts[action.candidate_id, action.effort], ""
        else:
            attempt = journal.state.attempts_elsewhere[action.candidate_id, action.device]
            place = f"/{json.dumps(to_json(action.device), sort_keys=True)}"
        name = f"{journal.started.run_id}/{action.candidate_id}/{action.effort.value}/{attempt + 1}{place}"
        started = EvaluationStarted(
            request_id=str(uuid.uuid5(uuid.NAMESPACE_OID, name)),
            candidate_id=action.candidate_id,
            effort=action.effort,
            bound_speedup=action.bound_speedup,
            evaluator=evaluator,
            device=action.device,
        )
        journal.write(started)
        return started

    def evaluation_request(self, started: EvaluationStarted, device: DeviceRequirement | None) -> EvaluateRequest:
        """What is asked of an evaluator that knows the problem.

        Args:
            device: the kind that the run is on.
        """
        journal = self._journal
        proposed = journal.state.candidates[started.candidate_id].proposed
        return EvaluateRequest(
            request_id=started.request_id,
            problem_digest=journal.started.problem_digest,
            candidate=Candidate(source=journal.text(proposed.source_digest), language=proposed.language),
            effort=started.effort,
            baseline=journal.state.settings.baseline,
            bound_speedup=started.bound_speedup,
            device=started.device or device,
            client_id=f"kernelevo-{journal.started.run_id[:8]}",
            accept_refused_problem=journal.state.settings.accept_refused_problem,
            # A verification answered from a store would verify nothing.
            fresh=started.effort is Effort.FINAL,
        )

    def record(self, started: EvaluationStarted, evaluation: Evaluation) -> None:
        """Log what an evaluator found."""
        self._journal.write(
            EvaluationFinished(
                request_id=started.request_id,
                candidate_id=started.candidate_id,
                evaluation=evaluation,
                device=started.device,
            )
        )
