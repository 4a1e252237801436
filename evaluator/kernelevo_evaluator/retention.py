"""What the store forgets beyond an age or a size, the oldest first: evaluations with their requests, and problems with their
reports that nothing in the store goes by any more."""

from __future__ import annotations

import heapq
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from kernelevo_evaluator.schema import ABANDONED, ACCEPTED, evaluations, problems, reports, requests

if TYPE_CHECKING:
    from collections.abc import Sequence

AT_ONCE = 500
"""Evaluations, and problems, that one transaction takes out: others want to write in between."""

_OPEN = sa.select(requests.c.evaluation_id).where(requests.c.state == ACCEPTED)
_IN_USE = sa.or_(
    sa.exists().where(evaluations.c.problem_digest == problems.c.digest),
    sa.exists().where(requests.c.problem_digest == problems.c.digest, requests.c.state == ACCEPTED),
)


@dataclass(frozen=True, slots=True)
class Pruned:
    """How much was taken out."""

    evaluations: int = 0
    problems: int = 0

    def __bool__(self) -> bool:
        return bool(self.evaluations or self.problems)

    def __add__(self, other: Pruned) -> Pruned:
        return Pruned(self.evaluations + other.evaluations, self.problems + other.problems)


def prune(connection: sa.Connection, before: float, maximum_bytes: int | None) -> Pruned:
    """Take out a part of what was recorded, or last used, before then (seconds since the epoch), and of the oldest beyond
    `maximum_bytes`. What is accepted and not finished stays, and so does what it and what is recorded go by."""
    total = sum(
        connection.execute(sa.select(sa.func.sum(table.c.bytes))).scalar() or 0
        for table in (evaluations, problems, reports)
    )
    limit = time.time() if maximum_bytes is not None and total > maximum_bytes else before
    old: dict[str, list[Any]] = {"evaluation": [], "problem": []}
    for row in heapq.merge(_evaluations(connection, limit), _problems(connection, limit), key=lambda one: one.at):
        if row.at > before and (maximum_bytes is None or total <= maximum_bytes):
            break
        total -= row.bytes
        old[row.kind].append(row)
    gone = [
        connection.execute(
            sa.delete(table).where(
                table.c.evaluation_id.in_([row.id for row in old["evaluation"]]), table.c.evaluation_id.not_in(_OPEN)
            )
        ).rowcount
        for table in (evaluations, requests)
    ]
    connection.execute(sa.delete(requests).where(requests.c.state == ABANDONED, requests.c.accepted_at <= before))
    return Pruned(gone[0], _forget_problems(connection, old["problem"]))


def _evaluations(connection: sa.Connection, limit: float) -> Sequence[Any]:
    """The oldest of those that belong to no open request."""
    return connection.execute(
        sa.select(
            sa.literal("evaluation").label("kind"),
            evaluations.c.evaluation_id.label("id"),
            evaluations.c.bytes,
            evaluations.c.recorded_at.label("at"),
        )
        .where(evaluations.c.recorded_at <= limit, evaluations.c.evaluation_id.not_in(_OPEN))
        .order_by(evaluations.c.sequence)
        .limit(AT_ONCE)
    ).all()


def _problems(connection: sa.Connection, limit: float) -> Sequence[Any]:
    """The longest unused of those that nothing goes by."""
    of_reports = (
        sa.select(sa.func.coalesce(sa.func.sum(reports.c.bytes), 0))
        .where(reports.c.problem_digest == problems.c.digest)
        .scalar_subquery()
    )
    return connection.execute(
        sa.select(
            sa.literal("problem").label("kind"),
            problems.c.digest.label("id"),
            (problems.c.bytes + of_reports).label("bytes"),
            problems.c.used_at.label("at"),
        )
        .where(problems.c.used_at <= limit, ~_IN_USE)
        .order_by(problems.c.used_at)
        .limit(AT_ONCE)
    ).all()


def _forget_problems(connection: sa.Connection, old: Sequence[Any]) -> int:
    if not old:
        return 0
    # Not one that somebody has begun to use since it was looked at.
    doomed = sa.and_(problems.c.digest.in_([row.id for row in old]), problems.c.used_at <= old[-1].at, ~_IN_USE)
    digests = connection.execute(sa.select(problems.c.digest).where(doomed).with_for_update()).scalars().all()
    connection.execute(sa.delete(reports).where(reports.c.problem_digest.in_(digests)))
    return connection.execute(sa.delete(problems).where(problems.c.digest.in_(digests))).rowcount
