"""What is looked at beside the outputs of a candidate: who does the work, where its time goes, what checking tools say of a call.

None of it makes a PASSED: it runs in the candidate's own process or sandbox, which may lie.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelevo_api.types import Artefact, Effort, KernelResources, Language, LimitKind, Profile, Stage
from kernelevo_evaluator.messages.runner import CallAlone, DescribeKernels, Done, Kernels
from kernelevo_evaluator.referee import compliance, deep
from kernelevo_evaluator.referee.host import HostFault
from kernelevo_evaluator.referee.outcome import Decided
from kernelevo_evaluator.referee.profile import record
from kernelevo_evaluator.referee.rings import CHECK_RING
from kernelevo_evaluator.referee.runners import RunnerFailed, nonce

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelevo_api.types import DeepCheck, Finding, KernelCounters, Timing
    from kernelevo_evaluator.messages.referee import MachineFacts
    from kernelevo_evaluator.messages.runner import Traced
    from kernelevo_evaluator.referee.checks import Subject
    from kernelevo_evaluator.referee.host import Host
    from kernelevo_evaluator.referee.reference import Reference
    from kernelevo_evaluator.referee.request import Request


class Looks:
    """One evaluation's."""

    def __init__(
        self, host: Host, reference: Reference, request: Request, facts: MachineFacts, findings: list[Finding]
    ) -> None:
        """`findings`: what is found is added to."""
        self._host = host
        self._reference = reference
        self._request = request
        self._facts = facts
        self._findings = findings
        self._traced: Traced | None = None
        self.deep_checks: list[DeepCheck] = []
        self.compiled: tuple[Artefact, ...] = ()

    @property
    def on_gpu(self) -> bool:
        """Whether the candidate runs on one."""
        return bool(self._reference.space.device.type == "cuda")

    @property
    def launches_counted(self) -> bool:
        """Whether Nsight Compute counted what the trace tells of."""
        return any(check.tool == deep.LAUNCHES and check.ran and not check.faults for check in self.deep_checks)

    def compiled_kernels(self, subject: Subject) -> None:
        """What Triton's kernels use on the device: where ptxas tells it of built ones, these are told as built, too."""
        if not self.on_gpu or self._request.language not in (Language.TRITON, Language.TORCH):
            return
        try:
            found = subject.runner.ask(DescribeKernels(nonce=nonce()), Kernels)
        except RunnerFailed:
            return
        self.compiled = tuple(
            Artefact(
                name=f"{kernel.name.partition(' ')[0]}.cubin",
                digest=kernel.digest,
                bytes=kernel.nbytes,
                kernels=(
                    KernelResources(
                        kernel=kernel.name,
                        registers=kernel.registers,
                        shared_memory_bytes=kernel.shared_memory_bytes,
                        spill_bytes=kernel.spill_bytes,
                    ),
                ),
            )
            for kernel in found.kernels
        )

    def language(self, subject: Subject, timing: Timing | None) -> None:
        """Findings on what ran.

        Raises:
            Decided: `NOT_THE_LANGUAGE`.
        """
        if self._request.language is Language.TORCH:
            return
        # Shares are times: nothing else of ours shall take cores from the call.
        self._host.quiet()
        try:
            self._traced = compliance.trace(subject, self._findings)
        finally:
            self._host.loud()
        if self._traced is not None:
            refuses = self._request.effort is Effort.FINAL
            self._findings += compliance.look(subject, self._traced, refuses=refuses, timing=timing)

    def profile(self, subject: Subject, timing: Timing | None) -> Profile:
        """Where a call's time goes. A failure of the candidate here is told in it: the verdict stands already."""
        call_us = timing.candidate_us if timing is not None else None
        try:
            for runner in (subject.runner, self._reference.runner):
                runner.enter(Stage.PROFILE, self._seconds, LimitKind.RUN_TIME)
            return record(subject, self._reference, self._request.report, self._facts, call_us)
        except Decided as decided:
            return Profile(
                call_us=call_us, remarks=(f"what a call runs could not be recorded: {decided.message}"[:1000],)
            )

    def deeply(self, under: Callable[[str, float], Subject]) -> tuple[KernelCounters, ...]:
        """One call under each tool, in a runner of its own; what it says becomes findings, and what hinders it is told.

        Args:
            under: a prepared candidate in a fresh runner under a tool, within so many seconds.

        Returns:
            What the device counted, by kernel.
        """
        for tool in deep.SANITIZERS:
            self._host.progress(Stage.PROFILE, f"one call under {tool}")
            check, findings = deep.of_sanitizer(tool, *self._watched(tool, under))
            self.deep_checks.append(check)
            self._findings += findings
        self._host.progress(Stage.PROFILE, f"one call under {deep.PROFILER}")
        check, findings, counters = deep.of_profiler(*self._watched(deep.PROFILER, under), self._traced)
        self.deep_checks.append(check)
        self._findings += findings
        return counters

    def _watched(self, tool: str, under: Callable[[str, float], Subject]) -> tuple[str, str]:
        """What was written until the end of a call under a tool, and what came in between; empty for nothing."""
        subject: Subject | None = None
        trouble = ""
        try:
            subject = under(tool, self._seconds)
            subject.runner.must(CallAlone(nonce=nonce(), ring=CHECK_RING, slot=0), Done)
        except HostFault as fault:
            return "", str(fault)
        except Decided as decided:
            trouble = decided.message
        finally:
            if subject is not None:
                subject.close()
        return self._host.report("candidate"), trouble

    @property
    def _seconds(self) -> float:
        limit = self._request.limits.profile_time
        assert limit is not None, "limits are resolved before a job reaches the referee"
        return limit.total_seconds()
