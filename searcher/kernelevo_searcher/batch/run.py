"""One run, worked on by files: what is asked next, and what becomes of the answers.

Each process takes the run up, writes what it learned or handed out, and ends. What was handed out stays out until it is told or
given up; it is settled once, however often it is told.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kernelevo_api.json import to_json
from kernelevo_searcher import policy
from kernelevo_searcher.batch.lines import EVALUATIONS_URL, PROBLEMS_URL, Request, model_url
from kernelevo_searcher.events import EvaluationFinished, EvaluationStarted, FilesAsked, RunResumed
from kernelevo_searcher.inputs import BadInput
from kernelevo_searcher.journal import Journal, Pauses
from kernelevo_searcher.memory.recall import recollect
from kernelevo_searcher.model_calls import ModelCalls
from kernelevo_searcher.proposers import ActionKind
from kernelevo_searcher.steps import Steps

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kernelevo_searcher.events import ModelCallStarted
    from kernelevo_searcher.open_models import OpenModels
    from kernelevo_searcher.state import RunState
    from kernelevo_searcher.store import RunStore

__all__ = ["FILE", "PROBLEM", "BatchRun"]

FILE = "file"
"""What the log has for the evaluator's address where an evaluation is handed out."""
PROBLEM = "problem"
"""Of the request that registers the problem: its id within the run."""
_MANY = 1 << 30
_OUR_OWN = (policy.Seed, policy.Stop, policy.Verify, policy.Finish)


class BatchRun:
    """A run in the hands of one process.

    Args:
        store: opened to write.
        models: of the run; they are not called.
    """

    def __init__(self, store: RunStore, models: OpenModels) -> None:
        self._store = store
        self.journal = Journal(store)
        self.models = models
        self.steps = Steps(self.journal, with_models=bool(models.proposers))
        self.calls = ModelCalls(
            self.journal,
            models.proposers,
            Pauses(self.journal, _nobody),
            propose=self.steps.propose,
            wake=_nobody,
            cost=models.cost,
        )
        self._begun = False
        self._calls_to = self._slots_to = 0
        """So many may be out."""

    @property
    def state(self) -> RunState:
        """Where the run stands."""
        return self.journal.state

    @property
    def prefix(self) -> str:
        """What every `custom_id` of this run begins with."""
        return f"{self.journal.started.run_id}."

    def begin(self) -> None:
        """Take the run up, before the first write. Calls that a process sent and did not live to see answered are settled."""
        if not self._begun and self.state.finished is None:
            self._begun = True
            resumed = RunResumed(settings=self.state.settings, by_files=True)
            self.journal.write(resumed, *self.calls.settle_lost())

    # Asking.

    def ask_prompts(self, count: int) -> list[Request]:
        """Up to `count` further model calls, reserved and logged.

        Raises:
            BadInput: the problem is not registered, or no model is set.
        """
        self._ready()
        if not self.models.proposers:
            raise BadInput("the run has no model: name one when it is made, with --model.")
        before = set(self.state.calls)
        self._advance(prompts=count)
        return [self._prompt(call) for call in self.state.calls.values() if call.call_id not in before]

    def prompts_out(self) -> list[Request]:
        """The model calls that were handed out and not answered, as they were written then."""
        return [self._prompt(call) for call in self.state.calls.values() if call.body_digest is not None]

    def ask_evaluations(self, count: int) -> list[Request]:
        """Up to `count` further evaluations, logged; before the problem is registered, the request that registers it."""
        if self.state.registered is None:
            return [self._registration()]
        # A live process that ended has left them behind: nobody has them.
        kept = {key for key, started in self.state.in_flight.items() if started.evaluator == FILE}
        self._advance(evaluations=count)
        return [self._evaluation(started) for key, started in self.state.in_flight.items() if key not in kept]

    def evaluations_out(self) -> list[Request]:
        """The evaluations that are asked for and not answered."""
        if self.state.registered is None:
            return [self._registration()]
        return [self._evaluation(started) for started in self.state.in_flight.values()]

    def settle(self) -> None:
        """Do what needs nobody else: seeds, the stop, the verification's beginning, the end."""
        if self.state.registered is not None:
            self._advance()

    def _ready(self) -> None:
        if self.state.registered is None:
            raise BadInput(
                "the problem is not registered yet, so there is nothing to say about the device. Ask an evaluator first: "
                f"kernelevo ask {self._store.run_dir} --evaluations"
            )

    def _advance(self, *, prompts: int = 0, evaluations: int = 0) -> None:
        if self.state.finished is not None:
            return
        self.begin()
        recollect(self.journal)
        if prompts or evaluations:
            self.journal.write(FilesAsked(prompts=prompts, evaluations=evaluations))
        self.grant(prompts, evaluations)
        while self.state.finished is None and self.step():
            pass

    def grant(self, prompts: int = 0, evaluations: int = 0) -> None:
        """So many more than are out now may be handed out."""
        self._calls_to = len(self.state.calls) + prompts
        self._slots_to = len(self.state.in_flight) + evaluations

    def step(self) -> bool:
        """Do the next thing that can be done; whether there was one."""
        # What a live run would do with a call and a lane free: what is missing here is no reason to stop.
        action = self._decide(_MANY, _MANY, tuning=True)
        if isinstance(action, _OUR_OWN):
            return self.steps.take(action)
        action = self._decide(self._calls_to, self._slots_to, tuning=len(self.state.in_flight) < self._slots_to)
        match action:
            case policy.Evaluate():
                self.steps.start_evaluation(action, FILE)
            case policy.Propose(ActionKind.TUNE):
                self.steps.take(action)
            case policy.Propose(_, _, str(label)):
                request = self.calls.request(action)
                body = json.dumps(self.models.proposers[label].body(request), sort_keys=True)
                self.calls.start(action, request, body=body)
            case _:
                return False
        return True

    def _decide(self, calls: int, slots: int, *, tuning: bool) -> policy.Action:
        resources = policy.Resources(
            slots=slots,
            models=self.calls.resources(),
            seeds=self.steps.seed_digests,
            active_s=self.state.active_s,
            calls=calls,
            tuning=tuning,
        )
        return policy.decide(self.state, resources, self.journal.rng("decide"))

    # Requests.

    def _prompt(self, call: ModelCallStarted) -> Request:
        assert call.body_digest is not None
        body = json.loads(self.journal.text(call.body_digest))
        return Request(custom_id=f"{self.prefix}{call.call_id}", url=model_url(body), body=body)

    def _registration(self) -> Request:
        settings = self.state.settings
        body: dict[str, Any] = {
            "problem": to_json(self.journal.problem()),
            "accept_refused": settings.accept_refused_problem,
        }
        if settings.device is not None:
            body["device"] = to_json(settings.device)
        return Request(custom_id=f"{self.prefix}{PROBLEM}", url=PROBLEMS_URL, body=body)

    def _evaluation(self, started: EvaluationStarted) -> Request:
        assert self.state.connected is not None
        request = self.steps.evaluation_request(started, self.state.connected.device)
        # Each line holds all that its evaluation needs: a file can be split among hosts.
        request = replace(request, problem=self.journal.problem())
        return Request(custom_id=f"{self.prefix}{started.request_id}", url=EVALUATIONS_URL, body=to_json(request))

    # What the log knows beyond the state.

    def evaluations_started(self) -> dict[str, EvaluationStarted]:
        """Every evaluation that was ever asked for, by request id."""
        return {event.request_id: event for event in self._events() if isinstance(event, EvaluationStarted)}

    def evaluations_finished(self) -> dict[str, EvaluationFinished]:
        """The last result of each request."""
        return {event.request_id: event for event in self._events() if isinstance(event, EvaluationFinished)}

    def _events(self) -> Iterable[object]:
        return (record.event for record in self._store.records())


def _nobody() -> None:
    """Nobody waits in a process that waits for nothing."""
