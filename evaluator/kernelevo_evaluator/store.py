"""What must survive a crash: problems with their reports, accepted requests, evaluations. SQLite through SQLAlchemy Core.

A request is `accepted` before anything is promised about it and `done` once its evaluation is written with it, in one
transaction.
What is found `accepted` when the server starts was interrupted and is carried out again. `abandoned` requests were given up
(cancelled, or failed by a fault of ours); the same request_id may be sent again.

The library is synchronous, so every call runs in a thread of its own small pool. A store that is full, read-only or broken is
`StoreUnavailable`: the transaction left nothing behind.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import sqlite3
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from kernelevo_api.errors import StoreUnavailable
from kernelevo_api.json import from_json, to_json
from kernelevo_api.types import EvaluateRequest, Evaluation, Problem, ProblemReport, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable
    from io import TextIOWrapper
    from pathlib import Path

T = TypeVar("T")

SCHEMA_VERSION = 1
NEVER_CACHED = frozenset(
    {
        Verdict.TIMEOUT,
        Verdict.OUT_OF_MEMORY,
        Verdict.TIMING_DISPUTED,
        Verdict.CRASHED,
        Verdict.CANCELLED,
        Verdict.PROBLEM_FAULT,
        Verdict.EVALUATOR_FAULT,
    }
)
"""Verdicts that say something about one moment, not about the candidate."""

ACCEPTED, DONE, ABANDONED = "accepted", "done", "abandoned"

_metadata = sa.MetaData()
_facts = sa.Table(
    "facts", _metadata, sa.Column("name", sa.Text, primary_key=True), sa.Column("value", sa.Text, nullable=False)
)
_problems = sa.Table(
    "problems",
    _metadata,
    sa.Column("digest", sa.Text, primary_key=True),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
)
_reports = sa.Table(
    "reports",
    _metadata,
    sa.Column("problem_digest", sa.Text, sa.ForeignKey("problems.digest"), primary_key=True),
    sa.Column("environment", sa.Text, primary_key=True),
    sa.Column("report", sa.Text, nullable=False),
)
_requests = sa.Table(
    "requests",
    _metadata,
    sa.Column("request_id", sa.Text, primary_key=True),
    sa.Column("evaluation_id", sa.Text, nullable=False, unique=True),
    sa.Column("client_id", sa.Text, nullable=False),
    sa.Column("content", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False, index=True),
    sa.Column("request", sa.Text, nullable=False),
)
_evaluations = sa.Table(
    "evaluations",
    _metadata,
    sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("evaluation_id", sa.Text, nullable=False, unique=True),
    sa.Column("problem_digest", sa.Text, nullable=False),
    sa.Column("cache_key", sa.Text),
    sa.Column("evaluation", sa.Text, nullable=False),
    sa.Index("by_problem", "problem_digest", "sequence"),
    sa.Index("by_cache_key", "cache_key", "sequence"),
    sqlite_autoincrement=True,
)


class StoreLocked(Exception):
    """Another evaluator works on this state folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedRequest:
    """A request that this evaluator has promised to carry out, or did."""

    request_id: str
    evaluation_id: str
    client_id: str
    content: str
    """Key of the content: the same id with another content is refused."""
    state: str
    request: EvaluateRequest


class Store:
    """The evaluator's memory, in one SQLite file under `state_dir`. Made by `Store.open`."""

    def __init__(self, engine: sa.Engine, lock: TextIOWrapper) -> None:
        self._engine = engine
        self._writer = engine.execution_options(write=True)
        self._lock = lock
        # Readers beside the one writer that SQLite allows.
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="store")
        self.instance_id = ""

    @classmethod
    async def open(cls, state_dir: Path) -> Store:
        """Open or make the store.

        Raises:
            StoreLocked: another process holds it.
            StoreUnavailable: it cannot be read or written.
        """
        return await asyncio.to_thread(cls._open, state_dir)

    @classmethod
    def _open(cls, state_dir: Path) -> Store:
        try:
            state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = (state_dir / "lock").open("a+")
        except OSError as error:
            raise StoreUnavailable(f"the state folder {state_dir} cannot be used: {error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise StoreLocked(
                f"another evaluator works on {state_dir}; give this one its own with --state-dir"
            ) from error
        engine = sa.create_engine(f"sqlite:///{state_dir / 'evaluator.sqlite'}", connect_args={"timeout": 10})
        sa.event.listen(engine, "connect", _configure)
        sa.event.listen(engine, "begin", _begin)
        store = cls(engine, lock)
        try:
            store.instance_id = _unavailable(store._prepare)
        except BaseException:
            engine.dispose()
            lock.close()
            raise
        return store

    def _prepare(self) -> str:
        with self._writer.begin() as connection:
            _metadata.create_all(connection)
            connection.execute(
                insert(_facts)
                .values(
                    [
                        {"name": "schema_version", "value": str(SCHEMA_VERSION)},
                        {"name": "instance_id", "value": str(uuid.uuid4())},
                    ]
                )
                .on_conflict_do_nothing()
            )
            rows = connection.execute(sa.select(_facts.c.name, _facts.c.value))
            facts: dict[str, str] = {name: value for name, value in rows}  # noqa: C416 - rows are not pairs to a type checker
        if facts["schema_version"] != str(SCHEMA_VERSION):
            raise StoreUnavailable(
                f"the store is of version {facts['schema_version']}, this evaluator reads {SCHEMA_VERSION}; "
                "give it another folder with --state-dir"
            )
        return facts["instance_id"]

    async def close(self) -> None:
        """Finish what is being written and let go of the folder."""
        await asyncio.to_thread(self._threads.shutdown)
        self._engine.dispose()
        self._lock.close()

    # --- Problems

    async def save_problem(self, digest: str, problem: Problem, environment: str, report: ProblemReport) -> None:
        """Store a problem and its report; a report of the same environment is replaced."""

        def write(connection: sa.Connection) -> None:
            connection.execute(
                insert(_problems)
                .values(digest=digest, source=problem.source, name=problem.name)
                .on_conflict_do_nothing()
            )
            values = {"problem_digest": digest, "environment": environment, "report": _dump(report)}
            statement = insert(_reports).values(values)
            connection.execute(
                statement.on_conflict_do_update(
                    index_elements=["problem_digest", "environment"], set_={"report": values["report"]}
                )
            )

        await self._run(self._writer, write)

    async def problem(self, digest: str) -> Problem | None:
        """The source of a problem."""

        def read(connection: sa.Connection) -> Problem | None:
            row = connection.execute(sa.select(_problems).where(_problems.c.digest == digest)).first()
            return Problem(source=row.source, name=row.name) if row is not None else None

        return await self._run(self._engine, read)

    async def report(self, digest: str, environment: str) -> ProblemReport | None:
        """A problem's report, made in this environment."""

        def read(connection: sa.Connection) -> ProblemReport | None:
            text = connection.execute(
                sa.select(_reports.c.report).where(
                    _reports.c.problem_digest == digest, _reports.c.environment == environment
                )
            ).scalar()
            return from_json(json.loads(text), ProblemReport) if text is not None else None

        return await self._run(self._engine, read)

    # --- Requests

    async def accept(self, accepted: AcceptedRequest) -> None:
        """Promise to carry a request out; one that was given up before is promised again."""

        def write(connection: sa.Connection) -> None:
            values = {
                "request_id": accepted.request_id,
                "evaluation_id": accepted.evaluation_id,
                "client_id": accepted.client_id,
                "content": accepted.content,
                "state": ACCEPTED,
                "request": _dump(accepted.request),
            }
            statement = insert(_requests).values(values)
            connection.execute(statement.on_conflict_do_update(index_elements=["request_id"], set_={"state": ACCEPTED}))

        await self._run(self._writer, write)

    async def request(
        self, *, request_id: str | None = None, evaluation_id: str | None = None
    ) -> AcceptedRequest | None:
        """A request by one of its two ids."""

        def read(connection: sa.Connection) -> AcceptedRequest | None:
            condition = (
                _requests.c.request_id == request_id
                if request_id is not None
                else _requests.c.evaluation_id == evaluation_id
            )
            row = connection.execute(sa.select(_requests).where(condition)).first()
            return _accepted(row) if row is not None else None

        return await self._run(self._engine, read)

    async def interrupted(self) -> list[AcceptedRequest]:
        """Requests that were accepted and not finished, oldest first."""

        def read(connection: sa.Connection) -> list[AcceptedRequest]:
            rows = connection.execute(
                sa.select(_requests).where(_requests.c.state == ACCEPTED).order_by(sa.text("rowid"))
            )
            return [_accepted(row) for row in rows]

        return await self._run(self._engine, read)

    async def abandon(self, request_id: str) -> None:
        """Give a request up without a result."""
        await self._run(
            self._writer,
            lambda connection: connection.execute(
                sa.update(_requests).where(_requests.c.request_id == request_id).values(state=ABANDONED)
            ),
        )

    # --- Evaluations

    async def finish(
        self, request_id: str, evaluation: Evaluation, cache_key: str | None, *, state: str = DONE
    ) -> None:
        """Write an evaluation and the end of its request, both or neither."""
        key = cache_key if evaluation.verdict not in NEVER_CACHED else None

        def write(connection: sa.Connection) -> None:
            connection.execute(sa.delete(_evaluations).where(_evaluations.c.evaluation_id == evaluation.evaluation_id))
            connection.execute(
                sa.insert(_evaluations).values(
                    evaluation_id=evaluation.evaluation_id,
                    problem_digest=evaluation.problem_digest,
                    cache_key=key,
                    evaluation=_dump(evaluation),
                )
            )
            connection.execute(sa.update(_requests).where(_requests.c.request_id == request_id).values(state=state))

        await self._run(self._writer, write)

    async def evaluation(self, evaluation_id: str) -> Evaluation | None:
        """What is recorded under an id."""
        return await self._run(
            self._engine,
            lambda connection: _one(
                connection,
                sa.select(_evaluations.c.evaluation).where(_evaluations.c.evaluation_id == evaluation_id),
            ),
        )

    async def cached(self, cache_key: str) -> Evaluation | None:
        """The newest evaluation that answers an equal request."""
        return await self._run(
            self._engine,
            lambda connection: _one(
                connection,
                sa.select(_evaluations.c.evaluation)
                .where(_evaluations.c.cache_key == cache_key)
                .order_by(_evaluations.c.sequence.desc())
                .limit(1),
            ),
        )

    async def page(self, problem_digest: str, before: int | None, size: int) -> tuple[list[Evaluation], int | None]:
        """Evaluations, newest first, and where the next page begins, if there is one."""

        def read(connection: sa.Connection) -> tuple[list[Evaluation], int | None]:
            statement = sa.select(_evaluations.c.sequence, _evaluations.c.evaluation)
            if problem_digest:
                statement = statement.where(_evaluations.c.problem_digest == problem_digest)
            if before is not None:
                statement = statement.where(_evaluations.c.sequence < before)
            rows = connection.execute(statement.order_by(_evaluations.c.sequence.desc()).limit(size + 1)).all()
            found = [from_json(json.loads(row.evaluation), Evaluation) for row in rows[:size]]
            return found, int(rows[size - 1].sequence) if len(rows) > size else None

        return await self._run(self._engine, read)

    async def _run(self, engine: sa.Engine, work: Callable[[sa.Connection], T]) -> T:
        def transaction() -> T:
            with engine.begin() as connection:
                return work(connection)

        loop = asyncio.get_running_loop()
        # A transaction that has begun ends by itself: whoever waited for it may be cancelled, the store may not.
        return await asyncio.shield(loop.run_in_executor(self._threads, _unavailable, transaction))


def _unavailable(work: Callable[[], T]) -> T:
    try:
        return work()
    except (sa.exc.DatabaseError, sqlite3.Error, OSError) as error:
        cause = getattr(error, "orig", None) or error
        raise StoreUnavailable(f"the evaluator's store cannot be used: {cause}") from error


def _configure(connection: sqlite3.Connection, _record: object) -> None:
    # SQLAlchemy begins transactions itself (`_begin`), so that reading and writing are one.
    connection.isolation_level = None
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=10000"):
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: sa.Connection) -> None:
    # A writer takes its lock at once: one that starts as a reader can be refused half-way.
    write = connection.get_execution_options().get("write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _dump(value: Any) -> str:
    return json.dumps(to_json(value), allow_nan=False, separators=(",", ":"))


def _one(connection: sa.Connection, statement: sa.Select[Any]) -> Evaluation | None:
    text = connection.execute(statement).scalar()
    return from_json(json.loads(text), Evaluation) if text is not None else None


def _accepted(row: Any) -> AcceptedRequest:
    return AcceptedRequest(
        request_id=row.request_id,
        evaluation_id=row.evaluation_id,
        client_id=row.client_id,
        content=row.content,
        state=row.state,
        request=from_json(json.loads(row.request), EvaluateRequest),
    )
