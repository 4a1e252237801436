"""Many problems held before the evaluators' audit: which are taken, which are refused, and why.

Each problem goes to one evaluator, one for each of its lanes at a time. A record keeps what was found, so that a check that was
stopped goes on where it was.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections import Counter, deque
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from kernelevo_api.errors import (
    CallRefused,
    EvaluatorError,
    EvaluatorFault,
    InvalidRequest,
    ProblemRefused,
    QueueFull,
    TooLarge,
)
from kernelevo_api.json import to_json as limits_json
from kernelevo_api.pool import NoEvaluator
from kernelevo_api.types import Verdict
from kernelevo_searcher.events import text_digest
from kernelevo_searcher.inputs import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from kernelevo_api.pool import Endpoint, EvaluatorPool
    from kernelevo_api.types import Problem, ProblemReport
    from kernelevo_searcher.catalogue import Entry

__all__ = [
    "Checked",
    "Record",
    "State",
    "Work",
    "answers",
    "check",
    "check_one",
    "count",
    "device_of",
    "from_json",
    "limits_of",
    "to_json",
    "why_not",
]

TRIES = 2
"""Of one problem, where an evaluator fails on it."""
_FULL_S = 2.0
"""To wait for a queue that does not say how long it is full."""
_ANSWER_S = 30.0
"""For an evaluator on which something failed to say that it is there."""
_CODE = re.compile(r"(?P<code>[a-z0-9_]+): (?P<reason>.*)", re.DOTALL)
_UNREADABLE = "not_a_problem"


class State(StrEnum):
    """What became of a problem."""

    TAKEN = "taken"
    """Audited: candidates can be judged on it."""
    REFUSED = "refused"
    """Audited: nothing could be proved on it."""
    FAILED = "failed"
    """It did not get through its audit: it is no problem, does not load, or does not run within the limits."""
    NOT_CHECKED = "not_checked"
    """The evaluator failed, or would not say."""


_FAILURES = frozenset({_UNREADABLE, *(verdict.value for verdict in Verdict)})
"""Codes of problems that do not get through an audit; all others are findings of one."""


@dataclass(frozen=True, slots=True)
class Checked:
    """One problem, checked."""

    name: str
    state: State
    digest: str = ""
    """SHA-256 of its source."""
    codes: tuple[str, ...] = ()
    """Why it is not taken, a word each: an audit's findings, or the verdict that a candidate that failed so would get."""
    reasons: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    """Codes of findings that do not refuse it."""
    eager_us: float | None = None
    seconds: float = 0.0
    """The audit took."""
    on: str = ""
    """The device, and the evaluator's version."""
    limits: str = ""
    """Under which it was audited: what does not run within these may run within others."""


def count(results: Iterable[Checked]) -> dict[str, Any]:
    """Numbers of each state, and of each code among those not taken; a problem with two codes counts under both."""
    results = list(results)
    states = Counter(one.state.value for one in results)
    codes = Counter(code for one in results for code in dict.fromkeys(one.codes))
    return {
        "problems": len(results),
        **{state.value: states[state.value] for state in State},
        "why": dict(codes.most_common()),
    }


class Record:
    """Results as lines of JSON in a file that only grows.

    Raises:
        BadInput: the file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: dict[tuple[str, str, str], Checked] = {}
        try:
            lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
            path.parent.mkdir(parents=True, exist_ok=True)
            for number, line in enumerate(lines, 1):
                # The last line may have been cut off as it was written.
                try:
                    found = from_json(json.loads(line))
                except (ValueError, TypeError, KeyError):
                    if number == len(lines):
                        continue
                    raise BadInput(f"{path} is no record of a check: line {number}.") from None
                self._held[found.digest, found.on, found.limits] = found
            with path.open("a", encoding="utf-8") as file:
                if lines and not path.read_text(encoding="utf-8").endswith("\n"):
                    file.write("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"the record {path} cannot be used: {error}") from error

    def find(self, digest: str, on: str, limits: str) -> Checked | None:
        """What was found for this source on this device, within these limits."""
        return self._held.get((digest, on, limits))

    def add(self, one: Checked) -> None:
        """Keep a result, unless nothing was learnt."""
        if one.state is not State.NOT_CHECKED:
            self._held[one.digest, one.on, one.limits] = one
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(to_json(one), allow_nan=False) + "\n")


def to_json(one: Checked) -> dict[str, Any]:
    """A result as plain values."""
    return {**asdict(one), "state": one.state.value}


def from_json(data: dict[str, Any]) -> Checked:
    """The result that `to_json` made this of.

    Raises:
        ValueError, TypeError, KeyError: it did not.
    """
    lists = {name: tuple(data[name]) for name in ("codes", "reasons", "remarks")}
    return Checked(**{**data, **lists, "state": State(data["state"])})


@dataclass(slots=True)
class Work:
    """A problem to be checked, and what came in the way of it."""

    entry: Entry
    problem: Problem
    tries: int = 0
    troubles: list[str] = field(default_factory=list)


async def check(
    entries: Sequence[Entry],
    pool: EvaluatorPool,
    *,
    record: Record | None = None,
    tell: Callable[[Checked], None] = lambda one: None,
    begin: Callable[[str], None] = lambda name: None,
) -> list[Checked]:
    """Check them all, by a connected pool; in the order in which they end.

    Args:
        tell: told each result as it is there.
        begin: told the name of each problem that an evaluator begins with.

    Raises:
        NoEvaluator: every evaluator went away; what is checked by then was told.
    """
    waiting: deque[Work] = deque()
    results: list[Checked] = []

    def done(one: Checked, *, keep: bool = True) -> None:
        results.append(one)
        if keep and record is not None:
            record.add(one)
        tell(one)

    places = dict.fromkeys((device_of(endpoint), limits_of(endpoint)) for endpoint in pool.endpoints)
    for entry in entries:
        try:
            problem = entry.read()
        except BadInput as error:
            done(Checked(entry.name, State.FAILED, codes=(_UNREADABLE,), reasons=(str(error),)), keep=False)
            continue
        digest = text_digest(problem.source)
        known = [record.find(digest, *place) for place in places] if record is not None else []
        held = next((one for one in known if one is not None), None)
        if held is not None:
            done(held, keep=False)
        else:
            waiting.append(Work(entry, problem))

    async def work(endpoint: Endpoint) -> None:
        while waiting:
            item = waiting.popleft()
            begin(item.entry.name)
            one = await check_one(item, endpoint)
            if one is not None:
                done(one)
            elif item.tries < TRIES:
                waiting.append(item)
            else:
                done(Checked(item.entry.name, State.NOT_CHECKED, reasons=tuple(item.troubles)))
            if one is None and not await answers(endpoint):
                return

    workers = [work(endpoint) for endpoint in pool.endpoints for _ in range(max(1, endpoint.share(pool.device)))]
    await asyncio.gather(*workers)
    if waiting:
        raise NoEvaluator(f"no evaluator answers any more; {len(waiting)} problems were not checked")
    return results


async def check_one(item: Work, endpoint: Endpoint, *, accept_refused: bool = False) -> Checked | None:
    """The result by one evaluator; None where it failed, which counts as a try."""
    digest, began = text_digest(item.problem.source), time.monotonic()
    on, limits = device_of(endpoint), limits_of(endpoint)

    def result(state: State, **more: Any) -> Checked:
        seconds = round(time.monotonic() - began, 2)
        return Checked(item.entry.name, state, digest, seconds=seconds, on=on, limits=limits, **more)

    while True:
        try:
            return _taken(
                await endpoint.transport.register_problem(item.problem, accept_refused=accept_refused), result
            )
        except QueueFull as full:
            wait = full.retry_delay.total_seconds() if full.retry_delay else _FULL_S
            await asyncio.sleep(wait * random.uniform(1.0, 1.25))  # noqa: S311
        except (ProblemRefused, InvalidRequest, TooLarge) as refused:
            state, codes, reasons = why_not(refused)
            return result(state, codes=codes, reasons=reasons)
        except EvaluatorFault as fault:
            item.tries += 1
            item.troubles.append(str(fault))
            return None
        except CallRefused:
            raise
        except EvaluatorError as error:
            item.tries += 1
            item.troubles.append(str(error))
            return None


async def answers(endpoint: Endpoint) -> bool:
    """Whether an evaluator is there, after something failed on it."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            await endpoint.transport.get_capabilities()
    except (EvaluatorError, TimeoutError):
        return False
    return True


def _taken(report: ProblemReport, result: Callable[..., Checked]) -> Checked:
    eager = next((one.median_us for one in report.baselines), None)
    return result(State.TAKEN, remarks=tuple(one.code for one in report.findings), eager_us=eager)


def why_not(refused: CallRefused) -> tuple[State, tuple[str, ...], tuple[str, ...]]:
    """What a refusal makes of a problem: its state, and the codes and reasons as in `Checked`."""
    codes, reasons = [], []
    for one in refused.violations:
        match = _CODE.fullmatch(one.description)
        codes.append(match["code"] if match else _UNREADABLE)
        reasons.append(match["reason"] if match else one.description)
    if not codes:
        codes, reasons = [_UNREADABLE], [str(refused)]
    failed = not _FAILURES.isdisjoint(codes)
    return State.FAILED if failed else State.REFUSED, tuple(codes), tuple(reasons)


def device_of(endpoint: Endpoint) -> str:
    """What an evaluator measures on, and its version."""
    capabilities = endpoint.capabilities
    if capabilities is None:
        return ""
    devices = ", ".join(sorted({one.name for one in capabilities.devices}))
    return f"{devices}; evaluator {capabilities.evaluator_version}"


def limits_of(endpoint: Endpoint) -> str:
    """The limits that an evaluator audits under, e.g. "prepare_time=30, check_time=60, memory_bytes=4294967296"."""
    capabilities = endpoint.capabilities
    if capabilities is None or capabilities.default_limits is None:
        return ""
    found = limits_json(capabilities.default_limits)
    return ", ".join(f"{name}={int(value) if value == int(value) else value}" for name, value in found.items())
