"""What a bank holds: values, checked to be nothing but words of the vocabulary, verdicts and figures."""

from __future__ import annotations

import math
import re
import statistics
from dataclasses import dataclass

from kernelevo_api.types import DeviceKind, Language, Verdict  # noqa: TC001 - resolved when lessons are read back
from kernelevo_searcher.memory.vocabulary import DTYPES, OPERATORS, TECHNIQUES

__all__ = ["Context", "Failure", "Lesson", "Origin", "Recollection", "RunLessons", "check", "lesson_line", "merged"]

_RUN_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_DIGEST = re.compile(r"[0-9a-f]{16}")
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_VERSION = re.compile(r"[0-9A-Za-z.+]{1,40}")
_ARCHITECTURE = re.compile(r"([a-z0-9_.]{1,24}( |$)){0,16}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where lessons come from."""

    run_id: str
    problem: str
    """First half of the digest of its source's SHA-256: equal problems are known as equal, and nothing else of them is."""
    day: str
    """On which the run ended, in UTC, e.g. "2026-12-01"."""
    version: str = ""
    """Of the program."""
    evaluated: int = 0
    """Candidates of the run."""
    speedup: float | None = None
    """That the run ended with, verified; absent where nothing was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a problem was like, and what it ran on."""

    device: DeviceKind | None = None
    architecture: str = ""
    operators: tuple[str, ...] = ()
    """Of the reference, in words of the vocabulary."""
    dtypes: tuple[str, ...] = ()
    """Of its inputs."""
    size: int = 0
    """Power of two of the bytes that must be moved: a class, not a size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """How often something ended like this."""

    verdict: Verdict
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What one technique did in one run."""

    technique: str
    language: Language | None = None
    tuned: bool = False
    """Found by changing parameters, without a model."""
    tried: int = 0
    faster: int = 0
    """Than what it was tried on, with the whole interval of the ratio above 1."""
    slower: int = 0
    """With the whole interval below 1."""
    repaired: int = 0
    """Failed at first."""
    failures: tuple[Failure, ...] = ()
    gains: tuple[float, ...] = ()
    """Speed over what it was tried on, of each that passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLessons:
    """All that is kept of one run."""

    origin: Origin
    context: Context
    lessons: tuple[Lesson, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recollection:
    """What several runs taught of one technique: what a prompt is told."""

    technique: str
    language: Language | None = None
    tuned: bool = False
    runs: int = 0
    problems: int = 0
    tried: int = 0
    faster: int = 0
    slower: int = 0
    repaired: int = 0
    failures: tuple[Failure, ...] = ()
    median_gain: float | None = None
    best_gain: float | None = None


def check(entry: RunLessons) -> None:
    """Whether an entry holds nothing but what it may.

    Raises:
        ValueError: it does not; the message says what, and does not repeat it.
    """
    origin, context = entry.origin, entry.context
    _fits(_RUN_ID, origin.run_id, "run_id")
    _fits(_DIGEST, origin.problem, "problem")
    _fits(_DAY, origin.day, "day")
    _fits(_VERSION, origin.version or "0", "version")
    _fits(_ARCHITECTURE, context.architecture, "architecture")
    if origin.speedup is not None and not _is_ratio(origin.speedup):
        raise ValueError("the speedup is none")
    _known(context.operators, OPERATORS, "operator")
    _known(context.dtypes, DTYPES, "dtype")
    for lesson in entry.lessons:
        _known((lesson.technique,), TECHNIQUES, "technique")
        counts = [
            lesson.tried,
            lesson.faster,
            lesson.slower,
            lesson.repaired,
            *(each.count for each in lesson.failures),
        ]
        if min(counts) < 0 or max(counts) > lesson.tried or len(lesson.gains) > lesson.tried:
            raise ValueError("the counts of a lesson do not add up")
        if not all(map(_is_ratio, lesson.gains)):
            raise ValueError("a gain is no ratio")


def _fits(pattern: re.Pattern[str], value: str, name: str) -> None:
    if not pattern.fullmatch(value):
        raise ValueError(f"its {name} is not one")


def _known(values: tuple[str, ...], vocabulary: tuple[str, ...], what: str) -> None:
    if not set(values) <= set(vocabulary):
        raise ValueError(f"it holds a word that is no {what} known here")


def _is_ratio(value: float) -> bool:
    return math.isfinite(value) and value > 0


def merged(entries: list[tuple[RunLessons, Lesson]]) -> Recollection:
    """Lessons of one technique in one language, from one run or several, as one."""
    first = entries[0][1]
    lessons = [lesson for _, lesson in entries]
    gains = [gain for lesson in lessons for gain in lesson.gains]
    failures: dict[Verdict, int] = {}
    for lesson in lessons:
        for failure in lesson.failures:
            failures[failure.verdict] = failures.get(failure.verdict, 0) + failure.count
    return Recollection(
        technique=first.technique,
        language=first.language,
        tuned=first.tuned,
        runs=len({entry.origin.run_id for entry, _ in entries}),
        problems=len({entry.origin.problem for entry, _ in entries}),
        tried=sum(lesson.tried for lesson in lessons),
        faster=sum(lesson.faster for lesson in lessons),
        slower=sum(lesson.slower for lesson in lessons),
        repaired=sum(lesson.repaired for lesson in lessons),
        failures=tuple(
            Failure(verdict=verdict, count=count)
            for verdict, count in sorted(failures.items(), key=lambda item: (-item[1], item[0].value))
        ),
        median_gain=round(statistics.median(gains), 3) if gains else None,
        best_gain=max(gains) if gains else None,
    )


def lesson_line(lesson: Recollection) -> str:
    """A recollection in one line."""
    language = f" ({lesson.language.value})" if lesson.language is not None else ""
    how = "tuned" if lesson.tuned else "tried"
    parts = [f"{lesson.technique}{language}: {how} {lesson.tried}x, faster {lesson.faster}x, slower {lesson.slower}x"]
    if lesson.median_gain is not None and lesson.best_gain is not None:
        parts.append(f"median {lesson.median_gain:.2f}, best {lesson.best_gain:.2f} times the speed of its parent")
    if lesson.failures:
        parts.append("failed " + ", ".join(f"{each.count}x {each.verdict.value}" for each in lesson.failures))
    if lesson.repaired:
        parts.append(f"repaired {lesson.repaired}x")
    problems = f"{lesson.problems} problem{'' if lesson.problems == 1 else 's'}"
    return f"{'; '.join(parts)} [{problems}]"
