"""What the store forgets: the oldest evaluations beyond an age or a size, with their requests."""

from __future__ import annotations

import time

import sqlalchemy as sa

from kernelevo_evaluator.schema import ABANDONED, ACCEPTED, evaluations, requests

AT_ONCE = 500
"""Evaluations that one transaction takes out: others want to write in between."""


def prune(connection: sa.Connection, before: float, maximum_bytes: int | None) -> int:
    """Take out a part of what was recorded before then (seconds since the epoch), and of the oldest beyond `maximum_bytes`;
    how many evaluations that was. What is accepted and not finished stays."""
    limit = before
    total = connection.execute(sa.select(sa.func.sum(evaluations.c.bytes))).scalar() or 0
    if maximum_bytes is not None and total > maximum_bytes:
        limit = time.time()
    rows = connection.execute(
        sa.select(evaluations.c.evaluation_id, evaluations.c.bytes, evaluations.c.recorded_at)
        .where(evaluations.c.recorded_at <= limit)
        .order_by(evaluations.c.sequence)
        .limit(AT_ONCE)
    ).all()
    old = []
    for row in rows:
        if row.recorded_at > before and (maximum_bytes is None or total <= maximum_bytes):
            break
        total -= row.bytes
        old.append(row.evaluation_id)
    open_ones = sa.select(requests.c.evaluation_id).where(requests.c.state == ACCEPTED)
    gone = [
        connection.execute(
            sa.delete(table).where(table.c.evaluation_id.in_(old), table.c.evaluation_id.not_in(open_ones))
        ).rowcount
        for table in (evaluations, requests)
    ]
    connection.execute(sa.delete(requests).where(requests.c.state == ABANDONED, requests.c.accepted_at <= before))
    return gone[0]
