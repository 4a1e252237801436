"""One run of the real searcher on a landscape: its policy, its steps, its log and its account of calls, on a simulated clock.

Only what lies beyond the process is simulated: the model, the evaluator, the time that both take, and the disk. Everything is
drawn from the run's seed, and the replies from the seed and the number of the call, so that runs of two policies with one seed
meet the same luck.
"""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernelevo_api.types import (
    Baseline,
    BaselineKind,
    Capabilities,
    CheckedOn,
    Device,
    DeviceKind,
    DeviceRequirement,
    Effort,
    Evaluation,
    Language,
    Problem,
    ProblemPolicy,
    ProblemReport,
    Ratio,
    Timing,
    Verdict,
)
from kernelevo_searcher import policy
from kernelevo_searcher.engine import start_events
from kernelevo_searcher.events import (
    CandidateProposed,
    EvaluationStarted,
    EvaluatorsConnected,
    ModelCallStarted,
    ProblemRegistered,
    RunSettings,
    text_digest,
)
from kernelevo_searcher.journal import Journal, Pauses
from kernelevo_searcher.mechanisms import Mechanism, PolicyName
from kernelevo_searcher.model_calls import ModelCalls
from kernelevo_searcher.models import ModelSettings
from kernelevo_searcher.proposers import ActionKind, Proposal, ProposalRequest, ReplyOutcome, Usage
from kernelevo_searcher.steps import Steps
from searching.landscape import NEAR
from searching.memory import MemoryStore
from searching.proposer import Model, Reply
from searching.sources import Tunable, parse, render

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelevo_searcher.events import Record
    from kernelevo_searcher.state import RunState
    from searching.landscape import Landscape
    from searching.trials import Trial

LABEL, OTHER_LABEL = "simulated", "other"
PLAIN = Model()
CALLS = 150
_TOKENS = 13_000
"""Of a call, at the middle of what published searches pay."""
_TIMINGS = {Effort.SCREEN: 1, Effort.FULL: 4, Effort.FINAL: 16}
"""Timings that an evaluation of this effort averages; one has the noise that was recorded."""
_SURE = 1.96
_EXACT = 1e-6
"""Half the width of an interval without noise."""
_CALL_S = 60.0
_EVALUATION_S = 12.0
"""Medians; both vary by a half."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How a run is made.

    Args:
        calls: model calls at most; without a model, evaluations.
        in_flight: model calls at once. With one, each sees everything that came of those before.
        noisy: timings have the noise that was recorded.
        tunable: what the tuner may change, while model calls are under way.
        until_near: it stops once the best is near the optimum.
        model: absent for the tuner alone.
        other_model: a second one, at the same price.
        merge_share: as in the run's settings.
        trial: what becomes of the policy's proposals for a model.
    """

    policy: PolicyName = PolicyName.EVOLVE
    without: tuple[Mechanism, ...] = (Mechanism.PATIENCE,)
    calls: int = CALLS
    in_flight: int = 1
    noisy: bool = False
    tunable: Tunable = Tunable.NOTHING
    until_near: bool = False
    model: Model | None = PLAIN
    other_model: Model | None = None
    merge_share: float = 0.0
    trial: Trial | None = None


@dataclass(slots=True)
class Found:
    """What a run came to."""

    values: list[float]
    """Share of the optimum of what is held to be the best after so many model calls, from 0; without a model, after so many
    evaluations. Constant once it has stopped."""
    calls: int
    """Model calls that were made before it stopped."""
    evaluations: int = 0
    """Candidates measured."""
    reason: str = ""
    """Why it stopped."""
    chosen: float = 0.0
    """Share of the optimum of what the verification at the end chose."""


@dataclass(order=True, slots=True)
class _Due:
    """Something that comes back."""

    at_s: float
    order: int
    carry_out: Callable[[], None] = field(compare=False)


class Simulation:
    """One run."""

    def __init__(self, landscape: Landscape, setup: Setup, seed: int) -> None:
        self._landscape = landscape
        self._setup = setup
        self._seed = seed
        self._store = MemoryStore()
        self._due: list[_Due] = []
        self._started = 0
        models = {
            label: model
            for label, model in ((LABEL, setup.model), (OTHER_LABEL, setup.other_model))
            if model is not None
        }
        with_model = bool(models)
        settings = RunSettings(
            seed=seed,
            policy=setup.policy,
            without=setup.without,
            evaluations=None if with_model else setup.calls + 1,
            budget_tokens=setup.calls * _TOKENS if with_model else 0,
            models=tuple(ModelSettings(name=label, label=label) for label in models),
            merge_share=setup.merge_share,
            calls_in_flight=setup.in_flight,
            target_speedup=NEAR / landscape.value(landscape.start) if setup.until_near else None,
        )
        problem = Problem(source=f"# {landscape.name}\n", name=landscape.name)
        start = render(landscape, landscape.start, tunable=setup.tunable)
        event, texts = start_events(version="0", problem=problem, settings=settings, start=[("start", start)])
        self._store.append(event, texts=texts)
        self._journal = Journal(self._store)  # type: ignore[arg-type]
        self._journal.write(*_connected(problem))
        self._steps = Steps(self._journal, with_models=with_model)
        self._proposers = {label: _Proposer(self, label, model) for label, model in models.items()}
        self._calls = ModelCalls(
            self._journal,
            self._proposers,
            Pauses(self._journal, _nobody),
            propose=self._steps.propose,
            wake=_nobody,
        )

    @property
    def state(self) -> RunState:
        """Where the run stands."""
        return self._journal.state

    def records(self) -> list[Record]:
        """The log so far."""
        return list(self._store.records())

    def run(self) -> Found:
        """Carry the run out, verification included."""
        while self.state.finished is None:
            action = policy.decide(self.state, self._resources(), self._journal.rng("decide"))
            match action:
                case policy.Wait.WAIT:
                    due = heapq.heappop(self._due)
                    self._store.now_s = due.at_s
                    due.carry_out()
                case policy.Evaluate():
                    self._evaluate(self._steps.start_evaluation(action, "simulated"))
                case policy.Propose(kind) if kind is not ActionKind.TUNE:
                    trial = self._setup.trial
                    self._call(trial(action, self.state, self._journal.rng("trial")) if trial is not None else action)
                case _:
                    self._steps.take(action)
        return self._found()

    def _resources(self) -> policy.Resources:
        return policy.Resources(
            slots=2 * max(1, self._setup.in_flight // 2),
            models=self._calls.resources(),
            seeds=tuple(text_digest(source) for _, source, _ in self._steps.seeds),
            active_s=self._store.now_s,
            calls=self._setup.in_flight,
            tuning=self._setup.tunable is not Tunable.NOTHING,
        )

    def _after(self, median_s: float, carry_out: Callable[[], None]) -> None:
        """At once where there is nothing to overlap with."""
        if self._setup.in_flight == 1:
            carry_out()
            return
        self._started += 1
        rng = random.Random(f"{self._seed}:time:{self._started}")
        delay_s = median_s * math.exp(rng.gauss(0.0, 0.4))
        heapq.heappush(self._due, _Due(self._store.now_s + delay_s, self._started, carry_out))

    # The model.

    def _call(self, action: policy.Propose) -> None:
        assert action.model is not None
        request = self._calls.request(action)
        call = self._calls.start(action, request)
        assert call is not None, "every call costs the same, and the policy asks for none that cannot be paid"
        proposal = self._proposers[action.model].reply(request, int(call.call_id.removeprefix("m")))
        self._after(_CALL_S, lambda: self._calls.settle(call, proposal))

    def answer(self, model: Model, request: ProposalRequest, number: int) -> Reply:
        """What a simulated model says to a request; where it has no parent it begins from the start."""
        rng = random.Random(f"{self._seed}:{number}")
        parent, broken = parse(request.parent.source) if request.parent is not None else (self._landscape.start, 0)
        if request.action is ActionKind.FIX:
            assert broken
            return model.repair(parent, rng)
        if request.other is not None:
            return model.join(self._landscape, parent, parse(request.other.source)[0], rng)
        return model.reply(self._landscape, parent, rng)

    def source(self, reply: Reply, request: ProposalRequest) -> str | None:
        """The kernel in a reply."""
        if reply.configuration is None:
            return None
        broken = 0
        if reply.broken:
            broken = 1 + (parse(request.parent.source)[1] if request.parent is not None else 0)
        return render(self._landscape, reply.configuration, tunable=self._setup.tunable, broken=broken)

    # The evaluator.

    def _evaluate(self, started: EvaluationStarted) -> None:
        evaluation = self._judge(started)
        self._after(_EVALUATION_S, lambda: self._steps.record(started, evaluation))

    def _judge(self, started: EvaluationStarted) -> Evaluation:
        configuration, broken = parse(self._journal.view(started.candidate_id).source)
        measured = self._landscape.measured.get(configuration)
        common = {"effort": started.effort, "checked_on": CheckedOn.DEVICE, "language": Language.TRITON}
        if broken or measured is None:
            return Evaluation(verdict=Verdict.COMPILE_ERROR, message="does not build", **common)
        timings = _TIMINGS[started.effort]
        sigma = measured.sigma / math.sqrt(timings) if self._setup.noisy else 0.0
        half = _SURE * sigma if sigma else _EXACT
        start_ms = self._landscape.measured[self._landscape.start].time_ms
        attempt = self.state.attempts[started.candidate_id, started.effort]
        rng = random.Random(f"{self._seed}:{configuration}:{started.effort.value}:{attempt}")

        def ratio() -> Ratio:
            value = start_ms / measured.time_ms * math.exp(rng.gauss(0.0, sigma))
            return Ratio(value=value, low=value * math.exp(-half), high=value * math.exp(half))

        speedup = ratio()
        bound = started.bound_speedup
        timing = Timing(
            speedup=speedup,
            candidate_us=1000 * start_ms / speedup.value,
            baseline_us=1000 * start_ms,
            stopped_at_bound=bound is not None and speedup.high < bound,
            confirmation=ratio() if started.effort is Effort.FINAL else None,
        )
        return Evaluation(verdict=Verdict.PASSED, timing=timing, **common)

    # What came of it.

    def _value(self, candidate_id: str) -> float:
        configuration, _ = parse(self._journal.view(candidate_id).source)
        return self._landscape.value(configuration)

    def _found(self) -> Found:
        # The start is no step.
        state, steps = self.state, 0 if self._setup.model is not None else -1
        of_call: dict[str, int] = {}
        best: dict[int, tuple[float, float]] = {}
        """By the step that made it: what is the best by its own measurement, and its true value."""
        for record in self._store.records():
            event = record.event
            if isinstance(event, ModelCallStarted):
                steps += 1
                of_call[event.call_id] = steps
            elif isinstance(event, CandidateProposed):
                steps += self._setup.model is None
                step = of_call[event.call_id] if event.call_id is not None else steps
                candidate = state.candidates[event.candidate_id]
                if candidate.speedup is not None:
                    best[step] = max(best.get(step, (0.0, 0.0)), (candidate.low, self._value(candidate.id)))
        values: list[float] = []
        held = (0.0, 0.0)
        for step in range(self._setup.calls + 1):
            held = max(held, best.get(step, held))
            values.append(held[1])
        assert state.finished is not None
        chosen = state.finished.best_id
        return Found(
            values=values,
            calls=state.replies,
            evaluations=state.evaluated,
            reason=state.finished.reason,
            chosen=self._value(chosen) if chosen is not None else 0.0,
        )


class _Proposer:
    """A simulated model, as far as `ModelCalls` asks for it where somebody else sends its calls."""

    def __init__(self, simulation: Simulation, label: str, model: Model) -> None:
        self._simulation = simulation
        self.model = label
        self._model = model

    def actions(self) -> frozenset[ActionKind]:
        return frozenset(ActionKind) - {ActionKind.SEED, ActionKind.TUNE}

    def reserve(self, request: ProposalRequest) -> int:
        return _TOKENS

    def messages(self, request: ProposalRequest) -> list[dict[str, str]]:
        return []

    def estimate(self, request: ProposalRequest) -> Usage:
        return Usage(prompt_tokens=_TOKENS // 2, completion_tokens=_TOKENS - _TOKENS // 2)

    def reply(self, request: ProposalRequest, number: int) -> Proposal:
        """What the call of this number returns."""
        reply = self._simulation.answer(self._model, request, number)
        source = self._simulation.source(reply, request)
        return Proposal(
            outcome=ReplyOutcome.OK if source is not None else ReplyOutcome.PROSE,
            source=source,
            usage=self.estimate(request),
            model=self.model,
        )


def _connected(problem: Problem) -> tuple[EvaluatorsConnected, ProblemRegistered]:
    device = Device(id="0", kind=DeviceKind.CUDA, name="simulated", architecture="sm_00", healthy=True)
    report = ProblemReport(
        problem_digest=text_digest(problem.source),
        name=problem.name,
        # Not torch: the reference itself is no candidate here, the start is.
        policy=ProblemPolicy(dtype="float32", languages=(Language.TRITON,)),
        baselines=(Baseline(kind=BaselineKind.EAGER, median_us=100.0, low_us=99.0, high_us=101.0),),
    )
    return (
        EvaluatorsConnected(
            capabilities=Capabilities(api_version="v1", devices=(device,)),
            device=DeviceRequirement(kind=DeviceKind.CUDA),
            evaluators=("simulated",),
        ),
        ProblemRegistered(report=report),
    )


def _nobody() -> None:
    """Nobody waits in a simulation."""
