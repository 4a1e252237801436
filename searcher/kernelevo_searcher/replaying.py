"""A run carried out again from its own log: the same decisions, and the same log to the byte, or the place where they part.

What came from outside is fed in as it was recorded, in its order and at its time: replies, evaluations, evaluators that come
and go, prices, and who asked for what. All else is done anew by the parts that a live run is made of: what to do next, whom to
change, what to ask (to the byte), what a reply holds, what is a duplicate, what the tuner proposes, when to stop, what is best.
Nothing is sent to anybody, and nothing is paid.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from kernelevo_searcher import policy
from kernelevo_searcher.batch.run import BatchRun
from kernelevo_searcher.engine import live_resources
from kernelevo_searcher.events import (
    EvaluationFailed,
    EvaluationFinished,
    EvaluationStarted,
    EvaluatorChanged,
    EvaluatorsConnected,
    FilesAsked,
    MemoryRead,
    ModelCallFailed,
    ModelCallFinished,
    ModelCallStarted,
    ModelCallUnaffordable,
    Paused,
    ProblemRegistered,
    Resumed,
    RunResumed,
    RunStarted,
    SlotsChanged,
)
from kernelevo_searcher.open_models import OpenModels, open_models
from kernelevo_searcher.proposers import ActionKind, ReplyOutcome, Usage
from kernelevo_searcher.store import RunStore, StoreError

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from kernelevo_searcher.events import Event, Record

__all__ = ["Parting", "Replayed", "replay_into", "replay_run"]

_FROM_OUTSIDE = (
    EvaluationFailed,
    EvaluationFinished,
    EvaluatorChanged,
    EvaluatorsConnected,
    MemoryRead,
    ModelCallFailed,
    Paused,
    ProblemRegistered,
    Resumed,
    SlotsChanged,
)
_LONGEST = 300
"""Characters of a differing value that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """The first event that came out otherwise."""

    sequence: int
    recorded: str
    """The event as it stands in the log."""
    made: str
    """What was done instead; empty where nothing was."""
    differs: tuple[str, ...] = ()
    """What is not the same in the two, one line each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What came of a replay."""

    events: int
    """That were the same, to the byte."""
    parting: Parting | None = None


def replay_into(run_dir: Path, folder: Path) -> Replayed:
    """Carry a run out again; the log that comes out, as far as it is the same, is a run in `folder`.

    Raises:
        RunNotFound, StoreError: there is none, or the folder holds one already.
        BadInput: one of its models cannot be used as it is set up, or its folder of prompts is gone.
    """
    with RunStore.open(run_dir, read_only=True) as recorded, RunStore.create(folder) as copy:
        return replay_run(recorded, copy)


def replay_run(recorded: RunStore, copy: RunStore) -> Replayed:
    """Carry a run out again.

    Args:
        recorded: its log and texts; it is only read.
        copy: an empty store, which gets the log that comes out, as far as it is the same.

    Raises:
        StoreError: the log does not begin as a run does, or a text of it is missing.
        BadInput: one of its models cannot be used as it is set up, or its folder of prompts is gone.
    """
    records, lines = tuple(recorded.records()), recorded.lines()
    replay = _Replay(recorded, copy)
    made: list[str] = []
    while len(made) < len(records):
        record = records[len(made)]
        copy.clock = partial(_always, record.time)
        try:
            replay.take(record)
        except KeyError as error:
            raise StoreError(f"the run lacks a text that its event {record.sequence} refers to: {error}") from error
        new = copy.lines(after=len(made))
        parting = _parting(lines[len(made) :], new, len(made))
        if parting is not None:
            return Replayed(events=parting.sequence - 1, parting=parting)
        made += new
    return Replayed(events=len(made))


def _always(time: datetime) -> datetime:
    return time


def _parting(recorded: list[str], made: list[str], before: int) -> Parting | None:
    if not made:
        return Parting(sequence=before + 1, recorded=recorded[0], made="", differs=("now nothing would be done",))
    for offset, line in enumerate(made):
        was = recorded[offset] if offset < len(recorded) else ""
        if line != was:
            return Parting(
                sequence=before + offset + 1, recorded=was, made=line, differs=tuple(_differences(was, line))
            )
    return None


def _differences(recorded: str, made: str) -> list[str]:
    if not recorded:
        return ["the log ends here"]
    one, other = json.loads(recorded), json.loads(made)
    if one["kind"] != other["kind"]:
        return [f"recorded {one['kind']}, now {other['kind']}"]
    fields = {"time": (one["time"], other["time"])}
    for name in sorted({*one["event"], *other["event"]}):
        fields[name] = (one["event"].get(name), other["event"].get(name))
    return [f"{name}: recorded {_short(was)}, now {_short(now)}" for name, (was, now) in fields.items() if was != now]


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


class _Replay:
    """The parts of a run, put together anew at each place where a process took it up."""

    def __init__(self, recorded: RunStore, copy: RunStore) -> None:
        self._recorded = recorded
        self._copy = copy
        self._run: BatchRun | None = None
        self._by_files = False
        self._dollars: float | None = None

    def take(self, record: Record) -> None:
        """Do what led to this event, as a live run would."""
        event = record.event
        self._dollars = _dollars(event)
        match event:
            case RunStarted():
                self._start(event)
            case RunResumed():
                self._open(event)
                self.run.journal.write(event, *self.run.calls.settle_lost())
                self.run.grant()
            case FilesAsked():
                self.run.journal.write(event)
                self.run.grant(event.prompts, event.evaluations)
            case ModelCallFinished() if event.outcome is not ReplyOutcome.LOST:
                self._reply(event)
            case _ if isinstance(event, (*_FROM_OUTSIDE, ModelCallFinished)):
                self.run.journal.write(event)
            case _ if self._by_files:
                self.run.step()
            case _:
                self._decide(event)

    @property
    def run(self) -> BatchRun:
        """The parts."""
        if self._run is None:
            raise StoreError("the log does not begin with the start of a run")
        return self._run

    def _start(self, event: RunStarted) -> None:
        digests = [event.problem_digest, *(start.source_digest for start in event.start)]
        self._copy.append(event, texts=[self._recorded.text(digest) for digest in digests])
        self._open(RunResumed(settings=event.settings))

    def _open(self, event: RunResumed) -> None:
        models = open_models(event.settings, {}, keys=False)
        self._run = BatchRun(self._copy, OpenModels(models.proposers, self._cost))
        self._by_files = event.by_files

    def _cost(self, _model: str, _usage: Usage) -> float | None:
        """Prices change; what counts is what was known then."""
        return self._dollars

    def _reply(self, event: ModelCallFinished) -> None:
        from kernelevo_searcher.llm.client import Completion

        run = self.run
        state = run.state
        call = state.calls.get(event.call_id) or state.lapsed.get(event.call_id)
        proposer = run.models.proposers.get(call.model) if call is not None else None
        if call is None or proposer is None or event.text_digest is None:
            # Then the logs part here, and say so.
            return
        completion = Completion(
            text=self._recorded.text(event.text_digest),
            cut=event.cut,
            refused=event.declined,
            usage=event.usage,
            model=event.model,
        )
        parent = run.journal.view(call.parent_id) if call.parent_id is not None else None
        run.calls.settle(call, proposer.read_again(completion, parent))

    def _decide(self, event: Event) -> None:
        run = self.run
        with run.journal.moment() as now:
            resources = live_resources(run.journal, run.steps, run.calls, now)
            action = policy.decide(run.state, resources, run.journal.rng("decide"))
            match action:
                case policy.Evaluate():
                    # Which evaluator takes it is the pool's affair.
                    evaluator = event.evaluator if isinstance(event, EvaluationStarted) else ""
                    run.steps.start_evaluation(action, evaluator)
                case policy.Propose(kind) if kind is not ActionKind.TUNE:
                    run.calls.start(action, run.calls.request(action))
                case _:
                    run.steps.take(action)


def _dollars(event: Event) -> float | None:
    match event:
        case ModelCallStarted() | ModelCallUnaffordable():
            return event.reserved_dollars
        case ModelCallFinished():
            return event.dollars
        case _:
            return None
