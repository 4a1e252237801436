"""Problems and their reports in the store, inside a transaction of its."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import sqlalchemy as sa

from kernelevo_api.errors import UnknownProblem
from kernelevo_api.json import from_json
from kernelevo_api.types import Problem, ProblemReport
from kernelevo_evaluator.schema import problems, reports

if TYPE_CHECKING:
    from kernelevo_evaluator.databases import Database

_USE = sa.update(problems).where(problems.c.digest == sa.bindparam("of")).values(used_at=sa.bindparam("now"))


def save(
    database: Database, connection: sa.Connection, digest: str, problem: str, environment: str, report: str
) -> None:
    """Write a problem, used now, and its report of one environment, which replaces an earlier one. Both are JSON."""
    statement = database.insert(problems).values(
        digest=digest, problem=problem, bytes=len(problem), used_at=time.time()
    )
    connection.execute(
        statement.on_conflict_do_update(index_elements=["digest"], set_={"used_at": statement.excluded.used_at})
    )
    statement = database.insert(reports).values(
        problem_digest=digest, environment=environment, report=report, bytes=len(report)
    )
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=["problem_digest", "environment"],
            set_={"report": statement.excluded.report, "bytes": statement.excluded.bytes},
        )
    )


def use(connection: sa.Connection, digest: str) -> bool:
    """Note that a problem is used now; whether it is there."""
    return connection.execute(_USE, {"of": digest, "now": time.time()}).rowcount > 0


def unknown(digest: str) -> UnknownProblem:
    """What is said where a problem is named that is not there, or not any more."""
    return UnknownProblem(f"the problem {digest} is not stored here; register it and send the request again")


def problem(connection: sa.Connection, digest: str) -> Problem | None:
    """A problem with its source."""
    text = connection.execute(sa.select(problems.c.problem).where(problems.c.digest == digest)).scalar()
    return from_json(json.loads(text), Problem) if text is not None else None


def report(connection: sa.Connection, digest: str, environment: str) -> ProblemReport | None:
    """A problem's report, made in this environment."""
    statement = sa.select(reports.c.report).where(
        reports.c.problem_digest == digest, reports.c.environment == environment
    )
    text = connection.execute(statement).scalar()
    return from_json(json.loads(text), ProblemReport) if text is not None else None
