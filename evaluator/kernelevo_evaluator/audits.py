"""Problems: read, audited once for each environment, stored, found again."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kernelevo_api.errors import FieldViolation, InvalidRequest, ProblemRefused, StoreUnavailable
from kernelevo_api.types import Finding, Problem, ProblemReport, Progress
from kernelevo_evaluator import executor as executors
from kernelevo_evaluator import stored_problems
from kernelevo_evaluator.admission import client_id_faults
from kernelevo_evaluator.executor import MAKES_NO_SEEDS, NO_SEED
from kernelevo_evaluator.faults import once_more
from kernelevo_evaluator.newest import Newest
from kernelevo_evaluator.sources import digest_of

if TYPE_CHECKING:
    from kernelevo_api.types import EvaluateRequest, Limits, RegisterProblemRequest, Seed, Stage
    from kernelevo_evaluator.apart import Reader
    from kernelevo_evaluator.executor import Executor, ProblemSource, ProgressCallback
    from kernelevo_evaluator.lives import Lives
    from kernelevo_evaluator.requests import OpenRequest, ProgressListener
    from kernelevo_evaluator.scheduler import Listener, Scheduler, Ticket
    from kernelevo_evaluator.settings import EvaluatorSettings
    from kernelevo_evaluator.store import Store
    from kernelevo_evaluator.telemetry import Telemetry

RECENT_KEPT = 64
"""Reports kept in memory: for requests that looked into the store before one of them was there, and for the many that ask for the
same few problems."""
_OF_THE_HOST = frozenset({"too_large"})
"""Findings that refuse a problem on one host, and not on a larger one of the same kind."""
READ_KEPT = 32
"""Stored problems kept in memory as they were read: a digest never names another one."""


class Audits:
    """Reports of problems, made where there is none yet. Belongs to one event loop.

    Args:
        environment: what a stored report was made with; a report of another one does not count.
        limits: of an audit.
    """

    def __init__(
        self,
        *,
        executor: Executor,
        scheduler: Scheduler,
        store: Store,
        reader: Reader,
        settings: EvaluatorSettings,
        environment: str,
        limits: Limits,
        lives: Lives,
        telemetry: Telemetry,
    ) -> None:
        self._executor = executor
        self._scheduler = scheduler
        self._store = store
        self._reader = reader
        self._settings = settings
        self._environment = environment
        self._limits = limits
        self._lives = lives
        self._telemetry = telemetry
        self.waiting: Counter[str] = Counter()
        """Requests of each client that wait for their problem's audit."""
        # A request may have missed a report in the store because its audit had not ended, and that audit because it had.
        self._recent: Newest[str, ProblemReport] = Newest(RECENT_KEPT)
        self._read: Newest[str, ProblemSource] = Newest(READ_KEPT)

    async def register(self, request: RegisterProblemRequest, listener: ProgressListener) -> ProblemReport:
        """The problem's report, from the store or from its audit.

        Raises:
            InvalidRequest, ProblemRefused, TooLarge, QueueFull, Draining, EvaluatorFault, StoreUnavailable
        """
        if request.problem is None:
            raise InvalidRequest("problem is missing", violations=[FieldViolation("problem", "is missing")])
        faults = client_id_faults(request.client_id)
        if faults:
            raise InvalidRequest(f"client_id {faults[0].description}", violations=faults)
        source = await self._reader.problem(request.problem, self._settings.maximum_source_bytes)
        report = await self._registered(source, request.accept_refused)

        def told(stage: Stage, message: str, position: int | None) -> None:
            listener(Progress(stage=stage, message=message, time=datetime.now(UTC), queue_position=position))

        if report is None:
            report = await self._wait(self._audit(source, request.accept_refused, request.client_id, told))
        if request.with_seeds and not _has_looked_for_seeds(report):
            report = await self._wait(self._seed(source, report, request.client_id, told))
        return report

    async def _registered(self, source: ProblemSource, accept_refused: bool) -> ProblemReport | None:
        """The report of a problem that is kept from now on, if there is one."""
        report = await self.stored(source.digest, accept_refused)
        if report is not None:
            try:
                if await self._store.use_problem(source.digest):
                    return report
            except StoreUnavailable:
                return report  # A store that cannot be written to is pruned by nobody.
        made = self._recent.get(source.digest)
        if made is None:
            return report
        # Not in the store, and yet made: on its way there just now, or taken out of it since.
        await self._keep(source, made)
        return _allowed(made, accept_refused)

    def forget(self, digest: str) -> None:
        """Keep no longer in memory what is not in the store any more."""
        self._recent.forget(digest)
        self._read.forget(digest)

    async def _wait(self, ticket: Ticket[ProblemReport]) -> ProblemReport:
        try:
            return await ticket.wait()
        except asyncio.CancelledError:
            # The client is gone, or the work was stopped; after a grace period nobody waits for it through this ticket.
            ticket.listener = None
            asyncio.get_running_loop().call_later(self._settings.grace_s, ticket.give_back)
            raise

    async def stored(self, digest: str, accept_refused: bool) -> ProblemReport | None:
        """The stored report, if there is one of this environment.

        Raises:
            ProblemRefused: its audit refuses it, and nobody accepts it all the same.
        """
        return _allowed(await self._store.report(digest, self._environment), accept_refused)

    async def known(self, digest: str, accept_refused: bool) -> ProblemReport | None:
        """The report that evaluations go by, if there is one of this environment. Seeds that were made since may be missing.

        Raises:
            ProblemRefused: its audit refuses it, and nobody accepts it all the same.
        """
        report = self._made_meanwhile(digest, accept_refused)
        if report is None:
            report = await self.stored(digest, accept_refused)
            if report is not None:
                self._recent[digest] = report
        return report

    def _made_meanwhile(self, digest: str, accept_refused: bool) -> ProblemReport | None:
        return _allowed(self._recent.get(digest), accept_refused)

    async def problem_of(self, request: EvaluateRequest) -> ProblemSource:
        """The problem that a request names or brings.

        Raises:
            UnknownProblem, ProblemRefused, TooLarge
        """
        digest = request.problem_digest or ""
        if request.problem is not None:
            digest = digest_of(request.problem.source)
        read = self._read.get(digest)
        if read is not None and (request.problem is None or request.problem.name in ("", read.name)):
            self._read.use(digest)
            return read
        problem = request.problem or await self._store.problem(digest)
        if problem is None:
            raise stored_problems.unknown(digest)
        self._read[digest] = read = await self._reader.problem(problem, self._settings.maximum_source_bytes)
        return read

    def remembered(self, request: EvaluateRequest) -> tuple[ProblemSource, ProblemReport] | None:
        """As `problem_of` and `known`, of what is in memory; `None` for a problem that is brought along, or refused."""
        digest = request.problem_digest or ""
        source, report = self._read.get(digest), self._recent.get(digest)
        if request.problem is not None or source is None or report is None:
            return None
        try:
            report = _allowed(report, request.accept_refused_problem)
        except ProblemRefused:
            return None
        return (source, report) if report is not None else None

    async def report_for(self, opened: OpenRequest, accept_refused: bool, source: ProblemSource) -> ProblemReport:
        """The report that an accepted request waits for."""
        report = self._made_meanwhile(source.digest, accept_refused)
        if report is not None:
            return report
        client = opened.accepted.client_id
        self.waiting[client] += 1
        try:
            ticket = self._audit(source, accept_refused, client, opened.tell, promised=True)
            opened.ticket = ticket
            opened.submitted.set()
            return await ticket.wait()
        finally:
            self.waiting[client] -= 1
            if not self.waiting[client]:
                del self.waiting[client]

    def _audit(
        self, source: ProblemSource, accept_refused: bool, client: str, told: Listener, *, promised: bool = False
    ) -> Ticket[ProblemReport]:
        """Join or queue the audit of a problem; its end is a stored report.

        Raises:
            ProblemRefused: it takes the evaluator down.
        """
        life = f"audit {source.digest}"
        if why := self._lives.why_not(life):
            raise _refusal(why, None, "crashed")

        async def action(progress: ProgressCallback) -> ProblemReport:
            try:
                with self._telemetry.audit(source.digest):
                    async with self._lives.running(life, life):
                        report = await once_more(
                            lambda: self._executor.audit(source, self._limits, accept_refused, progress),
                            progress,
                            source.digest,
                        )
            except executors.ProblemRefused as refused:
                if refused.report is not None and _is_lasting(refused.report):
                    await self._keep(source, _of(source, refused.report))
                raise _refusal(str(refused), refused.report, refused.code) from refused
            report = _of(source, report)
            await self._keep(source, report)
            return report

        key = f"problem {source.digest} {accept_refused}"
        alone = self._lives.is_to_run_alone(life)
        return self._scheduler.submit(key, client, action, told, promised=promised, alone=alone)

    def _seed(self, source: ProblemSource, report: ProblemReport, client: str, told: Listener) -> Ticket[ProblemReport]:
        """Join or queue the making of a problem's seeds; its end is a stored report that has them, or says why not."""

        life = f"seeds {source.digest}"

        async def action(progress: ProgressCallback) -> ProblemReport:
            seeds, findings = await self._seeds(source, life, progress)
            seeded = replace(report, seeds=seeds, findings=(*report.findings, *findings))
            # Another evaluator of the same store may well make some.
            if not any(one.code == MAKES_NO_SEEDS for one in findings):
                await self._keep(source, seeded)
            return seeded

        key, alone = f"{life} {report.accepted_with_mark}", self._lives.is_to_run_alone(life)
        return self._scheduler.submit(key, client, action, told, alone=alone)

    async def _seeds(
        self, source: ProblemSource, life: str, progress: ProgressCallback
    ) -> tuple[tuple[Seed, ...], tuple[Finding, ...]]:
        if why := self._lives.why_not(life):
            return (), (Finding(code=NO_SEED, message=f"no kernel could be generated for a start: {why}"),)
        async with self._lives.running(life, life):
            return await once_more(
                lambda: self._executor.seeds(source, self._limits, progress), progress, source.digest
            )

    async def _keep(self, source: ProblemSource, report: ProblemReport) -> None:
        await self._store.save_problem(
            source.digest, Problem(source=source.source, name=source.name), self._environment, report
        )
        self._recent[source.digest] = report


def _has_looked_for_seeds(report: ProblemReport) -> bool:
    return bool(report.seeds) or any(finding.code == NO_SEED for finding in report.findings)


def _of(source: ProblemSource, report: ProblemReport) -> ProblemReport:
    return replace(report, problem_digest=source.digest, name=source.name, policy=source.policy)


def _is_lasting(report: ProblemReport) -> bool:
    """Whether what refuses a problem is the problem's own, so that another audit would find it again. Without a report the
    reference failed, which may have been the moment's doing, or that of a package that was not installed."""
    return not any(one.refuses and one.code in _OF_THE_HOST for one in report.findings)


def _allowed(report: ProblemReport | None, accept_refused: bool) -> ProblemReport | None:
    """A report as it stands for who asks: refused, or accepted with a mark, where its audit refuses the problem."""
    if report is None:
        return None
    refusing = [finding.message for finding in report.findings if finding.refuses]
    if refusing and not accept_refused:
        raise _refusal(f"the audit refuses this problem: {'; '.join(refusing)}", report)
    marked = bool(refusing)
    return report if report.accepted_with_mark == marked else replace(report, accepted_with_mark=marked)


def _refusal(message: str, report: ProblemReport | None, code: str = "") -> ProblemRefused:
    """Each violation begins with a code: a finding's, or that of how the reference failed."""
    found = [(one.code, one.message) for one in report.findings if one.refuses] if report is not None else []
    if code:
        found.append((code, message))
    return ProblemRefused(
        message, violations=[FieldViolation("problem.source", f"{code}: {text}") for code, text in found]
    )
