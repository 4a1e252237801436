"""Answers read into a run: each settles what was asked once; what is wrong with a line is told and costs the others nothing."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kernelevo_api.json import from_json
from kernelevo_api.types import Capabilities, DeviceRequirement, Evaluation, ProblemReport, Verdict
from kernelevo_searcher.batch.lines import BadLine, messages_of
from kernelevo_searcher.batch.run import PROBLEM
from kernelevo_searcher.candidates import is_ours
from kernelevo_searcher.events import (
    EvaluationFailed,
    EvaluatorsConnected,
    ModelCallFailed,
    ProblemRegistered,
)
from kernelevo_searcher.inputs import BadInput
from kernelevo_searcher.model_calls import lost_call
from kernelevo_searcher.proposers import ProposerError, Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kernelevo_searcher.batch.lines import Answer
    from kernelevo_searcher.batch.run import BatchRun
    from kernelevo_searcher.events import EvaluationStarted, ModelCallStarted

__all__ = ["Told", "give_up", "tell_evaluations", "tell_replies"]

ALL = "all"
GIVEN_UP = "given up: no answer was told"


@dataclass(slots=True)
class Told:
    """What came of a file of answers."""

    taken: int = 0
    failed: int = 0
    """Errors, which say that nothing was carried out."""
    repeated: int = 0
    """Told before: they change nothing, and cost nothing."""
    bad: list[BadLine] = field(default_factory=list)


def tell_replies(run: BatchRun, answers: Iterable[Answer | BadLine]) -> Told:
    """Replies of models."""
    told = Told()
    for answer in answers:
        item = _of_this_run(run, answer)
        if isinstance(item, BadLine):
            told.bad.append(item)
            continue
        call_id, answer = item
        state = run.state
        call = state.calls.get(call_id) or state.lapsed.get(call_id)
        if call is not None and call.body_digest is not None:
            reason = _tell_reply(run, call, answer, told)
            if reason:
                told.bad.append(BadLine(answer.number, f"{answer.custom_id}: {reason}; nothing was charged"))
        elif _was_started(call_id, state.calls_started):
            told.repeated += 1
        else:
            kind = "; evaluations are told with --evaluations" if call_id in run.evaluations_started() else ""
            told.bad.append(BadLine(answer.number, f"no prompt of this run has the custom_id {answer.custom_id}{kind}"))
    return told


def _was_started(call_id: str, count: int) -> bool:
    match = re.fullmatch(r"m([1-9]\d{0,8})", call_id)
    return match is not None and int(match[1]) <= count


def _tell_reply(run: BatchRun, call: ModelCallStarted, answer: Answer, told: Told) -> str:
    """Settle one call; what is wrong with its reply, where that is not one."""
    assert call.body_digest is not None
    journal, error = run.journal, answer.error
    lapsed = call.call_id not in journal.state.calls
    if lapsed and journal.state.finished is not None:
        told.repeated += 1
        return ""
    if not error:
        proposer = run.models.proposers.get(call.model)
        if proposer is None:
            return f"the run no longer has the model {call.model}"
        messages = messages_of(json.loads(journal.text(call.body_digest)))
        parent = journal.view(call.parent_id) if call.parent_id is not None else None
        try:
            proposal = proposer.read(json.dumps(answer.body), messages, parent)
        except ProposerError as problem:
            error = str(problem)
        except ValueError as problem:
            return str(problem)
        else:
            run.begin()
            if call.call_id in journal.state.lapsed_paid:
                # Its reservation was charged when it was given up, and that is the most it can have cost.
                proposal = replace(proposal, usage=Usage())
            run.calls.settle(call, proposal)
            told.taken += 1
            return ""
    if lapsed:
        told.repeated += 1
        return ""
    run.begin()
    journal.write(ModelCallFailed(call_id=call.call_id, message=_storable(error)))
    told.failed += 1
    return ""


def tell_evaluations(run: BatchRun, answers: Iterable[Answer | BadLine]) -> Told:
    """Results of evaluations, and of the problem's registration."""
    told = Told()
    asked, finished = run.evaluations_started(), run.evaluations_finished()
    for answer in answers:
        item = _of_this_run(run, answer)
        if isinstance(item, BadLine):
            told.bad.append(item)
            continue
        request_id, answer = item
        started = asked.get(request_id)
        if request_id == PROBLEM:
            reason = _tell_registration(run, answer, told)
        elif started is None:
            reason = "no evaluation of this run has this custom_id"
            if _was_started(request_id, run.state.calls_started):
                reason += "; replies of models are told without --evaluations"
        elif request_id in run.state.in_flight:
            reason = _tell_evaluation(run, started, answer, told)
        elif request_id in finished and is_ours(finished[request_id].evaluation) and not answer.error:
            # Given up, or told to have come to nothing: it was carried out all the same.
            if _is_measured(run, started) or run.state.finished is not None:
                told.repeated += 1
                continue
            reason = _tell_evaluation(run, started, answer, told)
        else:
            told.repeated += 1
            continue
        if reason:
            told.bad.append(BadLine(answer.number, f"{answer.custom_id}: {reason}"))
    return told


def _is_measured(run: BatchRun, started: EvaluationStarted) -> bool:
    if started.device is not None:
        return (started.candidate_id, started.device) in run.state.elsewhere
    return started.effort in run.state.candidates[started.candidate_id].evaluations


def _tell_registration(run: BatchRun, answer: Answer, told: Told) -> str:
    if run.state.registered is not None:
        told.repeated += 1
        return ""
    if answer.body is None:
        return f"the problem was not registered: {answer.error}"
    try:
        capabilities = from_json(answer.body.get("capabilities"), Capabilities)
        device = from_json(answer.body.get("device"), DeviceRequirement)
        report = from_json(answer.body.get("report"), ProblemReport)
    except ValueError as error:
        return f"it is no registration ({error})"
    if report.problem_digest != run.journal.started.problem_digest:
        return "it is the registration of another problem"
    run.begin()
    run.journal.write(EvaluatorsConnected(capabilities=capabilities, device=device), ProblemRegistered(report=report))
    told.taken += 1
    return ""


def _tell_evaluation(run: BatchRun, started: EvaluationStarted, answer: Answer, told: Told) -> str:
    if answer.body is None:
        run.begin()
        run.journal.write(
            EvaluationFailed(
                request_id=started.request_id,
                candidate_id=started.candidate_id,
                reason=_storable(answer.code),
                message=_storable(answer.error),
                device=started.device,
            )
        )
        told.failed += 1
        return ""
    try:
        evaluation = from_json(answer.body, Evaluation)
    except ValueError as error:
        return f"it is no evaluation ({error})"
    source = run.state.candidates[started.candidate_id].proposed.source_digest
    if evaluation.request_id not in ("", started.request_id) or evaluation.candidate_digest not in ("", source):
        return "it is the evaluation of something else"
    run.begin()
    run.steps.record(started, evaluation)
    told.taken += 1
    return ""


def give_up(run: BatchRun, ids: Sequence[str], *, evaluations: bool, unpaid: bool = False) -> int:
    """Settle what was handed out and will not be told; how many that were.

    A prompt is charged by its reservation, as nobody knows what it cost; a candidate may be asked to be evaluated again.

    Args:
        ids: `custom_id`s; "all" are all that are out.
        unpaid: the prompts were never sent, so that nothing was paid.

    Raises:
        BadInput: one of them is not out.
    """
    state, prefix = run.state, run.prefix
    out: set[str]
    if evaluations:
        out = set(state.in_flight)
    else:
        out = {call_id for call_id, call in state.calls.items() if call.body_digest is not None}
    chosen = sorted(out) if ALL in ids else [each.removeprefix(prefix) for each in ids]
    for each in chosen:
        if each not in out:
            raise BadInput(f"{each} is not out, so it cannot be given up. `kernelevo ask RUN --again` lists what is.")
    for each in chosen:
        run.begin()
        if evaluations:
            run.steps.record(
                state.in_flight[each], Evaluation(verdict=Verdict.CANCELLED, request_id=each, message=GIVEN_UP)
            )
        elif unpaid:
            run.journal.write(ModelCallFailed(call_id=each, message="given up: it was never sent"))
        else:
            run.journal.write(lost_call(state.calls[each], GIVEN_UP))
    return len(chosen)


def _of_this_run(run: BatchRun, answer: Answer | BadLine) -> tuple[str, Answer] | BadLine:
    """Its id within the run."""
    if isinstance(answer, BadLine):
        return answer
    if not answer.custom_id.startswith(run.prefix):
        return BadLine(answer.number, f"the custom_id {answer.custom_id!r} is none of this run's")
    return answer.custom_id.removeprefix(run.prefix), answer


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
