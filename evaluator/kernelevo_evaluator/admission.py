"""Whether a request can be carried out at all, and with which choices.

Two steps: `check` looks at the request alone, `resolve` at the request together with its problem. What is wrong with a request is
an error that names the field. What is wrong with a candidate is a verdict, and is never decided by a guess about its meaning:
only source that Python itself cannot parse, or a language that the problem rules out, ends here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from kernelevo_api.errors import FieldViolation, InvalidRequest, LimitTooHigh, TooLarge, Unsupported
from kernelevo_api.json import to_json
from kernelevo_api.types import (
    BaselineKind,
    Build,
    Candidate,
    Diagnostic,
    Effort,
    EvaluateRequest,
    Evaluation,
    Finding,
    Language,
    Limits,
    RaisedError,
    Stage,
    Verdict,
)
from kernelevo_evaluator.executor import ExecutorFacts, Job, ProblemSource
from kernelevo_evaluator.newest import Newest
from kernelevo_evaluator.sources import SourceError, digest_of

if TYPE_CHECKING:
    from kernelevo_api.types import ProblemReport
    from kernelevo_evaluator.apart import Reader
    from kernelevo_evaluator.settings import DeepChecks
    from kernelevo_evaluator.shown import Shown

MAXIMUM_CLIENT_ID = 128
SHOWN_KEPT = 256
"""Sources of which is kept in memory what they show; not the sources themselves."""
_DIGEST_LENGTH = 64


@dataclass(frozen=True, slots=True)
class Admitted:
    """A job, and what the static look found in its candidate."""

    job: Job
    findings: tuple[Finding, ...]
    cache_key: str


class Admission:
    """Holds requests against what this evaluator offers."""

    def __init__(
        self,
        facts: ExecutorFacts,
        evaluator_version: str,
        maximum_source_bytes: int,
        reader: Reader,
        deep_checks: DeepChecks,
    ) -> None:
        self._facts = facts
        self._deep_checks = deep_checks
        self._version = evaluator_version
        self._maximum_source_bytes = maximum_source_bytes
        self._reader = reader
        self._environment = self._environment_key()
        self._shown: Newest[str, Shown | SourceError] = Newest(SHOWN_KEPT)

    def check(self, request: EvaluateRequest) -> None:
        """Refuse what is wrong whatever the problem is.

        Raises:
            InvalidRequest, TooLarge, LimitTooHigh, Unsupported: the message says what to do.
        """
        violations = list(_malformed(request))
        if violations:
            raise InvalidRequest(
                f"the request is malformed: {'; '.join(f'{one.field} {one.description}' for one in violations)}",
                violations=violations,
            )
        for field, candidate in (("candidate", request.candidate), ("baseline_candidate", request.baseline_candidate)):
            if candidate is not None:
                self._check_size(f"{field}.source", candidate.source)
        self._check_limits(request.limits or Limits())
        self._check_device(request)
        if request.effort is not None and request.effort not in self._facts.efforts:
            raise Unsupported(
                f"effort {request.effort.value} is not offered here; offered are "
                f"{', '.join(one.value for one in self._facts.efforts)}",
                violations=[FieldViolation("effort", "not offered")],
            )

    async def resolve(
        self, request: EvaluateRequest, problem: ProblemSource, report: ProblemReport, evaluation_id: str
    ) -> Admitted | Evaluation:
        """The job with every choice made, or the evaluation of a candidate that needs no run to be judged. The report may
        be an empty one that the caller replaces once the problem is audited.

        Raises:
            Unsupported: a language that this evaluator does not offer.
            EvaluatorFault: nobody could be had to read a long source.
            InvalidRequest: a language was asked for that the problem's policy rules out.
        """
        assert request.candidate is not None
        evaluation = Evaluation(
            evaluation_id=evaluation_id,
            problem_digest=problem.digest,
            candidate_digest=digest_of(request.candidate.source),
            verdict=Verdict.COMPILE_ERROR,
            stage=Stage.ADMIT,
            effort=request.effort or Effort.FULL,
            baseline=request.baseline or BaselineKind.EAGER,
            language=request.candidate.language,
        )
        shown = await self._look(request.candidate.source)
        if isinstance(shown, SourceError):
            return _compile_error(evaluation, shown)
        findings = shown.findings
        language = self._language("candidate.language", request.candidate, shown.language, problem)
        if language is None:
            allowed = ", ".join(one.value for one in problem.policy.languages)
            return dataclasses.replace(
                evaluation,
                verdict=Verdict.NOT_THE_LANGUAGE,
                language=shown.language,
                findings=findings,
                message=f"the candidate is written in {shown.language.value}; the problem asks for {allowed}",
            )
        if request.candidate.language not in (None, shown.language):
            findings += (
                Finding(code="language_not_seen", message=f"nothing in the source shows that it is {language.value}"),
            )
        baseline_language = None
        if request.baseline_candidate is not None:
            other = await self._look(request.baseline_candidate.source)
            if isinstance(other, SourceError):
                raise InvalidRequest(
                    f"the baseline candidate cannot be compiled: {other}",
                    violations=[FieldViolation("baseline_candidate.source", str(other))],
                )
            baseline_language = self._language(
                "baseline_candidate.language", request.baseline_candidate, other.language, None
            )
        job = Job(
            evaluation_id=evaluation_id,
            problem=problem,
            report=report,
            candidate=request.candidate,
            language=language,
            effort=request.effort or Effort.FULL,
            limits=resolve_limits(request.limits, self._facts.default_limits),
            baseline=request.baseline or BaselineKind.EAGER,
            baseline_candidate=request.baseline_candidate,
            baseline_language=baseline_language,
            bound_speedup=request.bound_speedup,
            profile=request.profile,
            skip_timing=request.skip_timing,
        )
        return Admitted(job, findings, self._cache_key(job))

    def environment_key(self) -> str:
        """What a stored report or evaluation was made with, beside its request: another procedure, toolchain or device
        may give another result."""
        return self._environment

    def _environment_key(self) -> str:
        facts = self._facts
        return _hash(
            {
                "protocol": facts.protocol_version,
                "evaluator": self._version,
                "toolchain": [to_json(tool) for tool in facts.toolchain],
                "devices": sorted({(d.kind.value if d.kind else "", d.name, d.architecture) for d in facts.devices}),
                "sandbox": facts.sandbox.backend,
            }
        )

    def _cache_key(self, job: Job) -> str:
        other = job.baseline_candidate
        return _hash(
            {
                "environment": self.environment_key(),
                "problem": job.problem.digest,
                "policy": to_json(job.problem.policy),
                "candidate": digest_of(job.candidate.source),
                "language": job.language.value,
                "effort": job.effort.value,
                "limits": to_json(job.limits),
                "baseline": job.baseline.value,
                "baseline_candidate": digest_of(other.source) if other is not None else None,
                "baseline_language": job.baseline_language.value if job.baseline_language else None,
                "bound": job.bound_speedup,
                "skip_timing": job.skip_timing,
                "profile": job.profile,
                "deep_checks": self._deep_checks,
            }
        )

    def _check_size(self, field: str, source: str) -> None:
        size = len(source.encode())
        if size > self._maximum_source_bytes:
            raise TooLarge(
                f"{field} has {size} bytes; this evaluator takes {self._maximum_source_bytes}",
                violations=[FieldViolation(field, f"{size} bytes")],
            )

    def _check_limits(self, limits: Limits) -> None:
        negative: list[FieldViolation] = []
        high: list[FieldViolation] = []
        for field in dataclasses.fields(Limits):
            value = getattr(limits, field.name)
            if value is None:
                continue
            maximum = getattr(self._facts.maximum_limits, field.name)
            if value <= (timedelta(0) if isinstance(value, timedelta) else 0):
                negative.append(FieldViolation(f"limits.{field.name}", "must be positive"))
            elif maximum is not None and value > maximum:
                high.append(FieldViolation(f"limits.{field.name}", f"{_amount(value)} is above {_amount(maximum)}"))
        if negative:
            raise InvalidRequest(f"{negative[0].field} must be positive", violations=negative)
        if high:
            raise LimitTooHigh(
                f"above this evaluator's maximum: {'; '.join(f'{one.field} {one.description}' for one in high)}",
                violations=high,
            )

    def _check_device(self, request: EvaluateRequest) -> None:
        wanted = request.device
        if wanted is None:
            return
        for device in self._facts.devices:
            if (
                (wanted.kind in (None, device.kind))
                and (not wanted.name or wanted.name == device.name)
                and (not wanted.architecture or wanted.architecture == device.architecture)
                and device.memory_bytes >= wanted.minimum_memory_bytes
            ):
                return
        raise Unsupported(
            f"no device here is {_describe(to_json(wanted))}; there is "
            f"{'; '.join(f'{one.name} ({one.architecture})' for one in self._facts.devices) or 'none'}",
            violations=[FieldViolation("device", "not offered")],
        )

    async def _look(self, source: str) -> Shown | SourceError:
        """What a source shows; searches send the same ones again and again."""
        digest = digest_of(source)
        shown = self._shown.use(digest)
        if shown is None:
            shown = self._shown[digest] = await self._reader.show(source)
        return shown

    def _language(
        self, field: str, candidate: Candidate, seen: Language, problem: ProblemSource | None
    ) -> Language | None:
        """The language to evaluate under; `None` where the source is in one that the problem rules out."""
        language = candidate.language or seen
        allowed = problem.policy.languages if problem is not None else ()
        if allowed and candidate.language is not None and candidate.language not in allowed:
            raise InvalidRequest(
                f"the problem allows {', '.join(one.value for one in allowed)}, not {language.value}",
                violations=[FieldViolation(field, f"{language.value} is ruled out by the problem")],
            )
        # A candidate that names an allowed language may not be written in one that is not; plain torch around it is fine.
        if allowed and seen not in allowed and (candidate.language is None or seen is not Language.TORCH):
            return None
        offered = [one.language.value for one in self._facts.languages if one.language is not None]
        if language.value not in offered:
            raise Unsupported(
                f"{language.value} is not offered here; offered are {', '.join(dict.fromkeys(offered))}",
                violations=[FieldViolation(field, f"{language.value} is not offered")],
            )
        return language


def resolve_limits(asked: Limits | None, defaults: Limits) -> Limits:
    """Each limit as asked for, else the default."""
    if asked is None:
        return defaults
    given = {field.name: getattr(asked, field.name) for field in dataclasses.fields(Limits)}
    return dataclasses.replace(defaults, **{name: value for name, value in given.items() if value is not None})


def content_key(request: EvaluateRequest) -> str:
    """What makes two requests of one `request_id` the same: everything but who sends it, and the problem by digest."""
    digest = request.problem_digest or (digest_of(request.problem.source) if request.problem is not None else None)
    return _hash(
        to_json(dataclasses.replace(request, request_id="", client_id="", problem=None, problem_digest=digest))
    )


def _malformed(request: EvaluateRequest) -> list[FieldViolation]:
    found: list[FieldViolation] = []

    def add(field: str, description: str) -> None:
        found.append(FieldViolation(field, description))

    try:
        if str(uuid.UUID(request.request_id)) != request.request_id.lower():
            add("request_id", "must be a UUID with hyphens")
    except ValueError:
        add("request_id", "must be a UUID")
    if request.problem_digest is None and request.problem is None:
        add("problem_ref", "is missing: give problem_digest or problem")
    elif request.problem_digest is not None and not is_digest(request.problem_digest):
        add("problem_digest", "must be 64 lower-case hexadecimal digits")
    if request.candidate is None:
        add("candidate", "is missing")
    found += client_id_faults(request.client_id)
    if (request.baseline is BaselineKind.CANDIDATE) != (request.baseline_candidate is not None):
        add("baseline_candidate", "goes with baseline BASELINE_KIND_CANDIDATE, and only with it")
    bound = request.bound_speedup
    if bound is not None and not (math.isfinite(bound) and bound > 0):
        add("bound_speedup", "must be a positive number")
    elif bound is not None and request.effort not in (Effort.SCREEN, Effort.FINAL):
        add("bound_speedup", "goes with EFFORT_SCREEN or EFFORT_FINAL")
    if request.device is not None and request.device.minimum_memory_bytes < 0:
        add("device.minimum_memory_bytes", "must not be negative")
    return found


def client_id_faults(client_id: str) -> list[FieldViolation]:
    """What is wrong with how a client calls itself."""
    found = []
    if not client_id.isprintable():
        found.append(FieldViolation("client_id", "must be printable"))
    if len(client_id) > MAXIMUM_CLIENT_ID:
        found.append(FieldViolation("client_id", f"is longer than {MAXIMUM_CLIENT_ID} characters"))
    return found


def is_digest(text: str) -> bool:
    """Whether this is how a digest is written."""
    return len(text) == _DIGEST_LENGTH and all(one in "0123456789abcdef" for one in text)


def _compile_error(evaluation: Evaluation, error: SourceError) -> Evaluation:
    return dataclasses.replace(
        evaluation,
        message=f"the candidate is not Python that can be compiled: {error}",
        error=RaisedError(type="SyntaxError", message=error.message, line=error.line),
        build=Build(
            diagnostics=(
                Diagnostic(
                    severity="error",
                    message=error.message,
                    file="candidate.py",
                    line=error.line,
                    excerpt=error.excerpt,
                ),
            )
        ),
    )


def _amount(value: int | timedelta) -> str:
    return f"{value.total_seconds():g} s" if isinstance(value, timedelta) else str(value)


def _describe(wanted: dict[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in wanted.items() if value)


def _hash(data: object) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True, allow_nan=False).encode()).hexdigest()
