"""What must be true afterwards: nothing lost, nothing done twice, nothing wrong."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernelevo_api.client import AsyncEvaluatorClient
from kernelevo_api.errors import EvaluatorError, UnknownEvaluation
from kernelevo_api.types import Evaluation, Verdict
from load.requests import Fate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from load.campaign import Course
    from load.requests import Asked

OF_THE_MOMENT = frozenset({Verdict.TIMING_DISPUTED, Verdict.TIMEOUT})
"""Verdicts about a busy host, not about the candidate: neither wrong nor kept for equal requests."""


@dataclass
class Faults:
    """Request ids, each with what is wrong."""

    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    disputed: int = 0
    """Verdicts of the moment; shown, not counted."""
    verdicts: Counter[str] = field(default_factory=Counter)


async def examine(address: str, asked: Sequence[Asked], course: Course, patience_s: float) -> Faults:
    """Hold what clients were told against what is recorded, and both against what was deserved.

    Lost: a request that was accepted and has no record, or whose client got an error, or was told what a replay does not say.
    Doubled: two records of one request, or one content that was measured twice although the first measurement stood.
    Wrong: a verdict that the candidate does not deserve.

    Args:
        patience_s: how long the last requests of clients that left may take.
    """
    faults = Faults()
    recorded: dict[str, Evaluation] = {}
    end = time.monotonic() + patience_s
    async with AsyncEvaluatorClient(address) as client:
        for one in asked:
            request_id = one.request.request_id
            found = await _record(client, request_id, end)
            if isinstance(found, str):
                faults.lost.append(f"{request_id} ({one.fate}): {found}")
                continue
            recorded[request_id] = found
            faults.verdicts[found.verdict.value if found.verdict else ""] += 1
            told = course.told.get(request_id)
            if told is not None and (told != found or await _replayed(client, one) != told):
                faults.lost.append(f"{request_id} ({one.fate}): was told {told}, and {found} is recorded")
            elif told is None and one.fate is not Fate.LEAVE:
                faults.lost.append(f"{request_id} ({one.fate}): {course.errors.get(request_id, 'was told nothing')}")
            if found.verdict in OF_THE_MOMENT:
                faults.disputed += 1
            elif found.verdict is Verdict.CANCELLED:
                if one.fate not in (Fate.CANCEL, Fate.LEAVE):
                    faults.wrong.append(f"{request_id} ({one.fate}): cancelled: {found.message}")
            elif found.verdict is not one.deserved:
                faults.wrong.append(f"{request_id} ({one.fate}): {found.verdict} in place of {one.deserved}")
        records = Counter([each.request_id async for each in client.list_evaluations()])
    faults.doubled += [f"{request_id}: {count} records" for request_id, count in records.items() if count > 1]
    faults.doubled += _measured_twice(asked, recorded)
    return faults


async def _replayed(client: AsyncEvaluatorClient, asked: Asked) -> Evaluation | str:
    """What the same request is told now, or the error that it gets."""
    try:
        return await client.evaluate(asked.request)
    except EvaluatorError as error:
        return repr(error)


async def _record(client: AsyncEvaluatorClient, request_id: str, end: float) -> Evaluation | str:
    """What is recorded, or why nothing is."""
    while True:
        try:
            found = await client.get_evaluation(request_id=request_id)
        except UnknownEvaluation:
            return "nothing is known of it"
        if isinstance(found, Evaluation):
            return found
        if time.monotonic() > end:
            return f"is still at {found.stage}"
        await asyncio.sleep(0.05)


def _measured_twice(asked: Sequence[Asked], recorded: dict[str, Evaluation]) -> list[str]:
    """Equal requests share one measurement, and its samples or its times of day say which it was."""
    measured: dict[str, set[str]] = defaultdict(set)
    for one in asked:
        found = recorded.get(one.request.request_id)
        if found is not None and found.verdict is one.deserved:
            measured[one.source].add(repr((found.timing, found.timeline)))
    return [f"{source[-40:]!r}: {len(times)} measurements" for source, times in measured.items() if len(times) > 1]
