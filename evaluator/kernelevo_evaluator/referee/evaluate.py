"""One evaluation, from a loaded candidate to the outcome: prepare, check, time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kernelevo_api.types import (
    BaselineKind,
    CheckedOn,
    Effort,
    LimitKind,
    Profile,
    Stage,
    TimingPolicy,
    Trust,
    Verdict,
)
from kernelevo_evaluator.referee import effort as settings
from kernelevo_evaluator.referee.checks import Subject, Tally, require_evidence
from kernelevo_evaluator.referee.classes import DECLARED, SCALED, shape_class, sizes_of
from kernelevo_evaluator.referee.clock import Clock, Ring
from kernelevo_evaluator.referee.fresh import Unseen
from kernelevo_evaluator.referee.looks import Looks
from kernelevo_evaluator.referee.machine import FLOOR_MARGIN
from kernelevo_evaluator.referee.outcome import Decided, Outcome
from kernelevo_evaluator.referee.reference import Reference, attach
from kernelevo_evaluator.referee.request import Request, Stages
from kernelevo_evaluator.referee.rings import CHECK_RING, TIMING_RING
from kernelevo_evaluator.referee.runners import Runner
from kernelevo_evaluator.referee.timing import Session, timing_of

if TYPE_CHECKING:
    import socket
    from datetime import timedelta

    from kernelevo_api.types import Ratio, Timing
    from kernelevo_evaluator.messages.referee import MachineFacts
    from kernelevo_evaluator.referee.clock import Side
    from kernelevo_evaluator.referee.host import Host


class Evaluation:
    """One evaluation in progress."""

    def __init__(
        self,
        host: Host,
        reference: Reference,
        request: Request,
        facts: MachineFacts,
        candidate: socket.socket,
        baseline: socket.socket | None,
    ) -> None:
        """`baseline`: the runner of a baseline that is not the reference itself (another candidate, or torch.compile)."""
        self._host = host
        self._reference = reference
        self._request = request
        self._facts = facts
        self._plan = settings.PLANS[request.effort]
        self._tally = Tally()
        self._stages = Stages()
        self._baseline_socket = baseline
        self._baseline: Side | None = None
        self._subject = self._subject_of(Runner("candidate", candidate, host, reference.space))
        self._findings = self._subject.findings
        self._looks = Looks(host, reference, request, facts, self._findings)
        self._profile: Profile | None = None

    def carry_out(self) -> Outcome:
        """Every failure of the candidate is an outcome."""
        try:
            timing = self._run_stages()
        except Decided as decided:
            return Outcome(
                verdict=decided.verdict,
                stage=decided.stage,
                message=decided.message,
                limit=decided.limit,
                error=decided.error,
                sandbox_ending=decided.ending,
                correctness=decided.correctness or (self._tally.correctness() if self._tally.trials else None),
                timing=decided.timing,
                checked_on=self._checked_on if self._tally.trials else None,
                findings=tuple(self._findings),
                stages=tuple(self._stages.done),
                compiled=self._looks.compiled,
            )
        finally:
            self._subject.close()
            if isinstance(self._baseline, Subject) or (
                self._baseline is not None and self._baseline is not self._reference
            ):
                self._baseline.close()
        return Outcome(
            verdict=Verdict.PASSED,
            stage=Stage.TIME if timing is not None else Stage.CHECK,
            message=self._passed(timing),
            correctness=self._tally.correctness(),
            timing=timing,
            checked_on=self._checked_on,
            findings=tuple(self._findings),
            stages=tuple(self._stages.done),
            profile=self._profile,
            deep_checks=tuple(self._looks.deep_checks),
            compiled=self._looks.compiled,
        )

    @property
    def _checked_on(self) -> CheckedOn:
        return CheckedOn.INTERPRETER if self._request.interpreter else CheckedOn.DEVICE

    def _passed(self, timing: Timing | None) -> str:
        checked = f"{self._tally.trials} checks passed"
        if self._request.interpreter:
            return f"{checked} under Triton's interpreter; nothing was timed"
        if timing is None or timing.speedup is None:
            return checked
        ratio = timing.confirmation or timing.speedup
        names = {BaselineKind.CANDIDATE: "the other candidate", BaselineKind.TORCH_COMPILE: "torch.compile"}
        against = names.get(self._request.baseline, "eager")
        return f"{checked}; {ratio.value:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}] over {against}"

    def _subject_of(self, runner: Runner, tally: Tally | None = None) -> Subject:
        return Subject(runner, self._reference, self._request.report.budgets, tally or self._tally)

    def _run_stages(self) -> Timing | None:
        with self._stages.during(Stage.PREPARE):
            self._host.progress(Stage.PREPARE, "building the model and calling it once")
            self._prepare(self._subject)
        with self._stages.during(Stage.CHECK):
            self._host.progress(Stage.CHECK, "comparing outputs on secret inputs")
            self._check(self._subject)
            require_evidence(self._tally)
            self._looks.compiled_kernels(self._subject)
            if self._traces_before_timing:
                self._looks.language(self._subject, None)
        timing = None if self._request.interpreter or self._request.skip_timing else self._timed_as_asked()
        if self._request.profile or (self._request.deep and not (timing is not None and self._is_behind(timing))):
            with self._stages.during(Stage.PROFILE):
                self._look_deeper(timing)
        return self._trusted(timing)

    def _trusted(self, timing: Timing | None) -> Timing | None:
        """Short calls of a GPU are claimed to be so until their launches were counted."""
        if timing is None or not self._looks.on_gpu or self._looks.launches_counted:
            return timing
        if timing.candidate_us is None or timing.candidate_us >= settings.CLAIMED_BELOW_US:
            return timing
        told = "so short a call counts as claimed until a final evaluation has counted its launches"
        return replace(timing, trust=Trust.CLAIMED, remarks=(*timing.remarks, told))

    def _timed_as_asked(self) -> Timing:
        with self._stages.during(Stage.TIME):
            timing = self._time(self._subject, self._request.bound_speedup)
            if not self._is_behind(timing):
                for _ in range(self._plan.timings - 1):
                    timing = self._confirm(timing)
            if self._request.effort is Effort.FINAL and not self._traces_before_timing:
                self._renew_subject()
                self._looks.language(self._subject, timing)
            return timing

    def _is_behind(self, timing: Timing) -> bool:
        """Whether it is shown already that it does not reach what it was sent to beat: a second timing would serve nobody."""
        bound = self._request.bound_speedup
        return bound is not None and timing.speedup is not None and timing.speedup.low < bound

    # --- Whether the language does the work

    @property
    def _traces_before_timing(self) -> bool:
        """On a processor, except in a screening; on a GPU tracing slows what follows: only a `final` spends a runner on it."""
        if self._request.interpreter:
            return False
        if self._request.skip_timing:
            return True
        return self._reference.space.device.type == "cpu" and self._request.effort is not Effort.SCREEN

    def _look_deeper(self, timing: Timing | None) -> None:
        """The profile that was asked for, and the tools. The verdict stands already: whatever fails here is told, no more."""
        if self._request.profile:
            self._host.progress(Stage.PROFILE, "recording what a call runs")
            self._profile = self._profiled(timing)
        if self._request.deep:
            counters = self._looks.deeply(self._subject_under)
            if self._profile is not None:
                self._profile = replace(self._profile, counters=counters)

    def _profiled(self, timing: Timing | None) -> Profile:
        if self._request.interpreter:
            return Profile(remarks=("nothing ran on a device: Triton's interpreter ran the kernels",))
        try:
            if timing is not None:
                # It ended with its timing.
                self._renew_subject()
        except Decided as decided:
            told = f"what a call runs could not be recorded: {decided.message}"
            return Profile(call_us=timing.candidate_us if timing is not None else None, remarks=(told[:1000],))
        return self._looks.profile(self._subject, timing)

    def _subject_under(self, tool: str, seconds: float) -> Subject:
        """The candidate in a fresh runner under a tool, prepared within so many seconds.

        Raises:
            HostFault: there is no such tool, or the runner did not come up under it.
            Decided: it could not be prepared.
        """
        self._subject.close()
        runner = Runner("candidate", self._host.fresh("candidate", tool), self._host, self._reference.space)
        self._subject = self._subject_of(runner, Tally())
        try:
            self._prepare(self._subject, Stage.PROFILE, seconds)
        except Decided:
            # The tool tells what it saw until here once its runner ends, which it does when nobody holds its channel.
            self._subject.close()
            raise
        return self._subject

    # --- Prepare and check

    def _prepare(self, subject: Subject, stage: Stage = Stage.PREPARE, seconds: float | None = None) -> None:
        """`seconds`: that it may take, where it is not the request's limit for this stage."""
        seconds = _seconds(self._request.limits.prepare_time) if seconds is None else seconds
        for runner in (subject.runner, self._reference.runner):
            runner.enter(stage, seconds, LimitKind.PREPARE_TIME if stage is Stage.PREPARE else LimitKind.RUN_TIME)
        if stage is Stage.PREPARE:
            subject.runner.allow_compiling(_seconds(self._request.limits.build_time))
        self._reference.construct()
        subject.construct()
        subject.map_ring(CHECK_RING, 1)
        subject.call_once(self._reference.take_inputs())

    def _enter_check(self, subject: Subject) -> None:
        seconds = _seconds(self._request.limits.check_time)
        subject.runner.enter(Stage.CHECK, seconds, LimitKind.CHECK_TIME)
        # The reference computes in double precision beside every call: a limit of its own, not the candidate's.
        self._reference.runner.enter(Stage.CHECK, 4 * seconds, LimitKind.CHECK_TIME)

    def _check(self, subject: Subject) -> None:
        self._enter_check(subject)
        classes = [DECLARED] * self._plan.trials
        if any(budget.input_class == SCALED.name for budget in self._request.report.budgets):
            classes += [SCALED] * self._plan.scaled_trials
        for number, input_class in enumerate(classes):
            if number:
                # Weights change between checks.
                self._reference.construct()
                subject.load_weights()
            content = self._reference.take_inputs(scale=input_class.scale, shift=input_class.shift)
            subject.trial(input_class.name, content)
        if self._plan.shape_trials and self._reference.policy.shapes:
            self._check_shapes(subject)

    def _check_shapes(self, subject: Subject) -> None:
        """Every declared further shape, with models built anew for each; then back to the first."""
        for text in self._reference.policy.shapes:
            with self._reference.resized(sizes_of(text)):
                subject.construct()
                subject.map_ring(CHECK_RING, 1)
                for _ in range(self._plan.shape_trials):
                    subject.trial(shape_class(text), self._reference.take_inputs())
        subject.construct()
        subject.map_ring(CHECK_RING, 1)

    # --- Time

    def _renew_subject(self) -> None:
        """The same candidate in a fresh runner, prepared."""
        self._subject.close()
        self._subject = self._subject_of(
            Runner("candidate", self._host.fresh("candidate"), self._host, self._reference.space)
        )
        self._prepare(self._subject)
        self._enter_check(self._subject)

    def _confirm(self, timing: Timing) -> Timing:
        """A second, independent timing in a fresh runner; the first selected, this one is reported."""
        self._renew_subject()
        self._subject.trial(DECLARED.name, self._reference.take_inputs())
        second = self._time(self._subject).speedup
        first = timing.speedup
        assert first is not None
        assert second is not None
        if max(first.low / second.high, second.low / first.high) <= 1:
            return replace(timing, confirmation=second)
        # Intervals that lie apart: two processes of one code differ by more than each shows by itself. Both belong to the truth.
        both = replace(second, low=min(first.low, second.low), high=max(first.high, second.high))
        told = (
            f"two timings in fresh runners lie apart: {first.value:.2f}x [{first.low:.2f}, {first.high:.2f}] and "
            f"{second.value:.2f}x [{second.low:.2f}, {second.high:.2f}]"
        )
        timing = replace(
            timing, confirmation=both, remarks=(*timing.remarks, f"{told}; the interval reported holds both")
        )
        if max(first.low / second.high, second.low / first.high) > 1 + settings.DISPUTED_GAP:
            raise Decided(Verdict.TIMING_DISPUTED, Stage.TIME, f"{told}; is the host loaded?", timing=timing)
        return timing

    def _baseline_side(self) -> Side:
        """What the candidate is compared with, prepared."""
        if self._baseline is not None:
            return self._baseline
        if self._request.baseline is BaselineKind.EAGER:
            self._baseline = self._reference
            return self._reference
        assert self._baseline_socket is not None
        prepare = _seconds(self._request.limits.prepare_time)
        if self._request.baseline is BaselineKind.TORCH_COMPILE:
            compiled = attach(
                self._baseline_socket,
                self._host,
                self._request.source,
                self._reference.policy,
                self._reference.space,
                4 * prepare,
                name="baseline",
                compiled=True,
            )
            self._baseline = compiled
            return compiled
        runner = Runner(
            "baseline", self._baseline_socket, self._host, self._reference.space, blame=Verdict.PROBLEM_FAULT
        )
        other = self._subject_of(runner, Tally())
        self._baseline = other
        try:
            self._prepare(other)
            self._check(other)
        except Decided as decided:
            raise Decided(
                Verdict.PROBLEM_FAULT,
                decided.stage,
                f"the candidate that serves as the baseline did not pass: {decided.message}",
                error=decided.error,
                ending=decided.ending,
            ) from decided
        # Its checks changed the weights: the candidate under test gets the same ones.
        self._subject.load_weights()
        return other

    def _time(self, subject: Subject, bound_speedup: float | None = None) -> Timing:
        seconds = _seconds(self._request.limits.run_time)
        subject.runner.enter(Stage.TIME, seconds, LimitKind.RUN_TIME)
        self._reference.runner.enter(Stage.TIME, 4 * seconds, LimitKind.RUN_TIME)
        baseline = self._baseline_side()
        baseline.runner.enter(Stage.TIME, 4 * seconds, LimitKind.RUN_TIME)
        reference = self._reference
        contents = reference.make_contents()
        ring, ring_of_replays = (
            Ring.choose(call_seconds, reference.slot_bytes, reference.space, contents.seconds)
            for call_seconds in (reference.call_seconds, self._replayed_seconds)
        )
        clock = Clock(self._host, contents, ring, reference.space, ring_of_replays)
        self._host.progress(
            Stage.TIME,
            f"blocks of {clock.ring.calls} calls, each on inputs that no call has seen",
        )
        sides = list({side.runner.name: side for side in (subject, baseline, reference)}.values())
        clock.map(sides)
        session = Session(
            host=self._host,
            reference=reference,
            subject=subject,
            baseline=baseline,
            clock=clock,
            plan=self._plan,
            rings=subject.rings[TIMING_RING],
            baseline_rings=baseline.rings[TIMING_RING],
            reference_rings=reference.rings[TIMING_RING],
            unseen=Unseen(
                reference.take_inputs,
                lambda: self._host.running(reference.runner.name),
                max(1, min(settings.LONE_CALLS, reference.space.kept_bytes // max(1, reference.inputs.nbytes))),
            ),
        )
        self._host.quiet()
        try:
            for side in sides:
                self._host.take_freezer(side.runner.name)
                side.runner.spin(reference.space.spins)
            with reference.space.awake:
                stopped = session.measure(bound_speedup)
                session.finish()
                drift = session.drift()
            lone = session.lone()
            session.remember()
        finally:
            for side in sides:
                side.runner.spin(False)
                self._host.drop_freezer(side.runner.name)
            self._host.loud()
        for side in (reference, baseline):
            clock.release(side)
        self._host.progress(Stage.TIME, f"timed: {clock.spent.describe()}")
        timing = timing_of(
            session,
            reference.policy.timing or TimingPolicy.PIPELINED,
            self._request.report.floor_us,
            drift,
            lone,
            stopped_at_bound=stopped,
        )
        self._refuse_impossible(timing, drift)
        if lone is not None and lone.disputes:
            raise Decided(
                Verdict.TIMING_DISPUTED,
                Stage.TIME,
                f"a call takes {lone.among_others_us:.0f} us among others and {lone.alone_us:.0f} us alone, where the baseline "
                "shows no such gap: the calls of a block shared work or kept it, which no user's calls can",
                timing=timing,
            )
        return timing

    @property
    def _replayed_seconds(self) -> float:
        """What a call of the reference takes in a block as the audit timed it: without the launch, where it could be captured."""
        eager = [
            baseline.median_us / 1e6
            for baseline in self._request.report.baselines
            if baseline.kind is BaselineKind.EAGER and baseline.median_us
        ]
        return min([self._reference.call_seconds, *eager])

    def _refuse_impossible(self, timing: Timing, drift: Ratio) -> None:
        if drift.high < 1 - settings.DISPUTED_DRIFT:
            raise Decided(
                Verdict.TIMING_DISPUTED,
                Stage.TIME,
                f"the baseline ran {1 / drift.value - 1:.1%} faster once the candidate was gone: "
                "the candidate slowed it, or the host changed",
                timing=timing,
            )
        if (
            timing.floor_us is not None
            and timing.candidate_us is not None
            and timing.candidate_us * FLOOR_MARGIN < timing.floor_us
        ):
            raise Decided(
                Verdict.BELOW_FLOOR,
                Stage.TIME,
                f"{timing.candidate_us:.1f} us a call, yet reading the inputs once takes {timing.floor_us:.1f} us at the "
                "bandwidth measured on this device",
                timing=timing,
            )


def _seconds(limit: timedelta | None) -> float:
    assert limit is not None, "limits are resolved before a job reaches the referee"
    return limit.total_seconds()
