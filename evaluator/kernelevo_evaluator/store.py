"""What must survive a crash: problems with their reports, accepted requests, evaluations. SQLAlchemy Core over a `Database`.

A request is `accepted` before anything is promised about it and `done` once its evaluation is written with it, in one
transaction. What is found `accepted` when its server starts was interrupted and is carried out again. `abandoned` requests were
given up (cancelled, or failed by a fault of ours); the same request_id may be sent again.

Of several servers on one database each carries out what it accepted itself, and takes over what a dead one left when a client
asks for it. The library is synchronous, so every call runs in a thread of its own small pool. A store that is full, read-only or
broken is `StoreUnavailable`: the transaction left nothing behind.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa

from kernelevo_api.errors import EvaluatorFault, StoreUnavailable
from kernelevo_api.json import from_json
from kernelevo_api.types import EvaluateRequest, Evaluation, Problem, ProblemReport, Verdict
from kernelevo_evaluator import retention, stored_problems
from kernelevo_evaluator.databases import PostgresDatabase, SqliteDatabase, StateFolder, StoreLocked
from kernelevo_evaluator.retention import Pruned
from kernelevo_evaluator.schema import (
    ABANDONED,
    ACCEPTED,
    DONE,
    SCHEMA_VERSION,
    evaluations,
    facts,
    metadata,
    requests,
    upgrade,
)
from kernelevo_evaluator.written import Written, dump

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kernelevo_evaluator.databases import Database

__all__ = ["ABANDONED", "ACCEPTED", "DONE", "NEVER_CACHED", "AcceptedRequest", "Store", "StoreLocked"]

T = TypeVar("T")

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


# What every call needs is built once: SQLAlchemy takes longer to build a statement than SQLite to carry it out.
_REQUEST = sa.select(requests).where(requests.c.request_id == sa.bindparam("id"))
_REQUEST_OF_EVALUATION = sa.select(requests).where(requests.c.evaluation_id == sa.bindparam("id"))
_EVALUATION = sa.select(evaluations.c.evaluation).where(evaluations.c.evaluation_id == sa.bindparam("id"))
_CACHED = (
    sa.select(evaluations.c.evaluation)
    .where(evaluations.c.cache_key == sa.bindparam("id"))
    .order_by(evaluations.c.sequence.desc())
    .limit(1)
)
_FORGET_EVALUATION = sa.delete(evaluations).where(evaluations.c.evaluation_id == sa.bindparam("id"))
_RECORD = sa.insert(evaluations)


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

    @property
    def problem_digest(self) -> str | None:
        """Of the problem that stands in the store for it; `None`: the request holds its own."""
        return self.request.problem_digest if self.request.problem is None else None


class Store:
    """The evaluator's memory. Made by `Store.open`."""

    def __init__(self, database: Database, folder: StateFolder) -> None:
        self._database = database
        self._engine, self._writer = database.engine, database.writer
        self._folder = folder
        self._readers = ThreadPoolExecutor(4, thread_name_prefix="store-read")
        self._writers = ThreadPoolExecutor(database.writers, thread_name_prefix="store-write")
        self._written = Written()
        self.instance_id = folder.instance_id
        own = (requests.c.owner == self.instance_id) & (requests.c.state == ACCEPTED)
        insert = database.insert(requests)
        self._new_statement = insert.on_conflict_do_nothing(index_elements=["request_id"]).returning(
            requests.c.request_id
        )
        self._promise_statement = insert.on_conflict_do_update(
            index_elements=["request_id"],
            set_={name: insert.excluded[name] for name in ("state", "owner", "request", "problem_digest")},
            where=own | (requests.c.state == ABANDONED),
        ).returning(requests.c.request_id)

    @classmethod
    async def open(cls, state_dir: Path, database_url: str | None = None) -> Store:
        """Open or make the store: a file in `state_dir`, or what stands at `database_url`.

        Raises:
            StoreLocked: another process holds the folder.
            StoreUnavailable: it cannot be read or written.
        """
        return await asyncio.to_thread(cls._open, state_dir, database_url)

    @classmethod
    def _open(cls, state_dir: Path, database_url: str | None) -> Store:
        folder = StateFolder(state_dir)
        try:
            database = PostgresDatabase(database_url, folder) if database_url else SqliteDatabase(folder)
        except BaseException:
            folder.close()
            raise
        store = cls(database, folder)
        try:
            _unavailable(store._prepare)
        except BaseException:
            store._readers.shutdown()
            store._writers.shutdown()
            database.close()
            folder.close()
            raise
        return store

    def _prepare(self) -> None:
        self._database.assert_alive()
        with self._writer.begin() as connection:
            if connection.dialect.name == "postgresql":
                # Two servers that start at once make the tables once.
                connection.exec_driver_sql("SELECT pg_advisory_xact_lock(hashtext('kernelevo schema'))")
            metadata.create_all(connection)
            connection.execute(
                self._database.insert(facts)
                .values(name="schema_version", value=str(SCHEMA_VERSION))
                .on_conflict_do_nothing()
            )
            found = connection.execute(sa.select(facts.c.value).where(facts.c.name == "schema_version")).scalar()
            if found is not None and found != str(SCHEMA_VERSION):
                found = upgrade(connection, found)
        if found != str(SCHEMA_VERSION):
            raise StoreUnavailable(
                f"the store is of version {found}, this evaluator reads {SCHEMA_VERSION}; "
                "give it another folder with --state-dir, or another database"
            )

    async def close(self) -> None:
        """Finish what is being written and let go of folder and database."""
        await asyncio.to_thread(self._readers.shutdown)
        await asyncio.to_thread(self._writers.shutdown)
        await asyncio.to_thread(self._database.close)
        self._folder.close()

    # --- Problems

    async def save_problem(self, digest: str, problem: Problem, environment: str, report: ProblemReport) -> None:
        """Store a problem and its report; a report of the same environment is replaced."""

        def write(connection: sa.Connection) -> None:
            stored_problems.save(self._database, connection, digest, dump(problem), environment, dump(report))

        await self._run(self._writer, write)

    async def use_problem(self, digest: str) -> bool:
        """Note that a problem is used now, which keeps it; whether it is there."""
        return await self._run(self._database.hasty, lambda connection: stored_problems.use(connection, digest))

    async def problem(self, digest: str) -> Problem | None:
        """The source of a problem."""
        return await self._run(self._engine, lambda connection: stored_problems.problem(connection, digest))

    async def report(self, digest: str, environment: str) -> ProblemReport | None:
        """A problem's report, made in this environment."""
        return await self._run(self._engine, lambda connection: stored_problems.report(connection, digest, environment))

    # --- Requests

    async def accept(self, accepted: AcceptedRequest) -> None:
        """Promise to carry a request out; one that was given up before is promised again.

        Raises:
            UnknownProblem: it names a problem that is not stored, or not any more; nothing was promised.
            EvaluatorFault: another server carries it out.
        """
        digest = accepted.problem_digest

        def transaction() -> bool:
            self._database.assert_alive()
            with self._writer.begin() as connection:
                if digest is not None and not stored_problems.use(connection, digest):
                    raise stored_problems.unknown(digest)
                return self._promise(connection, accepted, ACCEPTED)

        if not await self._in_thread(transaction):
            await self._take_over(accepted)

    async def answer_new(self, accepted: AcceptedRequest, evaluation: Evaluation) -> bool:
        """As `answer`, for a request that was perhaps never seen: whether it was not. Else nothing is written."""
        text = self._written.text(evaluation)

        def transaction() -> bool:
            self._database.assert_alive()
            with self._database.hasty.begin() as connection:
                values = self._values(accepted, DONE)
                new = connection.execute(self._new_statement, values).first() is not None
                if new:
                    _record(connection, evaluation, None, text, new=True)
                return new

        return await self._in_thread(transaction)

    async def answer(self, accepted: AcceptedRequest, evaluation: Evaluation) -> None:
        """Write a request together with its end, for one whose evaluation is known. Nothing is lost where the host's power takes
        this back: sent again, the request is answered again.

        Raises:
            EvaluatorFault: another server carries it out.
        """
        text = self._written.text(evaluation)

        def transaction() -> bool:
            self._database.assert_alive()
            with self._database.hasty.begin() as connection:
                promised = self._promise(connection, accepted, DONE)
                if promised:
                    _record(connection, evaluation, None, text)
                return promised

        if not await self._in_thread(transaction):
            await self._take_over(accepted)
            await self.finish(accepted.request_id, evaluation, None)

    def _promise(self, connection: sa.Connection, accepted: AcceptedRequest, state: str) -> bool:
        """Write a request in this state, unless another server has it or it is done; whether it was written."""
        return connection.execute(self._promise_statement, self._values(accepted, state)).first() is not None

    def _values(self, accepted: AcceptedRequest, state: str) -> dict[str, Any]:
        return {
            "request_id": accepted.request_id,
            "evaluation_id": accepted.evaluation_id,
            "owner": self.instance_id,
            "client_id": accepted.client_id,
            "content": accepted.content,
            "state": state,
            "request": dump(accepted.request),
            "accepted_at": time.time(),
            "problem_digest": accepted.problem_digest,
        }

    async def _take_over(self, accepted: AcceptedRequest) -> None:
        """Make a request one's own that a dead server accepted.

        Raises:
            EvaluatorFault: that server lives.
        """

        def transaction() -> bool:
            with self._engine.begin() as connection:
                owner = connection.execute(
                    sa.select(requests.c.owner).where(requests.c.request_id == accepted.request_id)
                ).scalar()
            if owner is None or self._database.lives(owner):
                return False
            with self._writer.begin() as connection:
                taken = connection.execute(
                    sa.update(requests)
                    .where(
                        requests.c.request_id == accepted.request_id,
                        requests.c.evaluation_id == accepted.evaluation_id,
                        requests.c.owner == owner,
                        requests.c.state == ACCEPTED,
                    )
                    .values(owner=self.instance_id, state=ACCEPTED)
                )
                return taken.rowcount == 1

        if not await self._in_thread(transaction):
            raise EvaluatorFault(
                "another evaluator on this database carries this request out; try again there, or later"
            )

    async def request(
        self, *, request_id: str | None = None, evaluation_id: str | None = None
    ) -> AcceptedRequest | None:
        """A request by one of its two ids."""

        def read(connection: sa.Connection) -> AcceptedRequest | None:
            statement = _REQUEST if request_id is not None else _REQUEST_OF_EVALUATION
            row = connection.execute(statement, {"id": request_id if request_id is not None else evaluation_id}).first()
            return _accepted(row) if row is not None else None

        return await self._run(self._engine, read)

    async def interrupted(self) -> list[AcceptedRequest]:
        """Requests that this server accepted and did not finish, oldest first."""

        def read(connection: sa.Connection) -> list[AcceptedRequest]:
            rows = connection.execute(
                sa.select(requests)
                .where(requests.c.state == ACCEPTED, requests.c.owner == self.instance_id)
                .order_by(requests.c.accepted_at)
            )
            return [_accepted(row) for row in rows]

        return await self._run(self._engine, read)

    async def abandon(self, request_id: str) -> None:
        """Give a request up without a result."""
        await self._run(
            self._writer,
            lambda connection: connection.execute(
                sa.update(requests).where(requests.c.request_id == request_id).values(state=ABANDONED)
            ),
        )

    # --- Evaluations

    async def finish(
        self, request_id: str, evaluation: Evaluation, cache_key: str | None, *, state: str = DONE
    ) -> None:
        """Write an evaluation and the end of its request, both or neither."""
        key = cache_key if evaluation.verdict not in NEVER_CACHED else None

        def write(connection: sa.Connection) -> None:
            ended = connection.execute(
                sa.update(requests)
                .where(requests.c.request_id == request_id, requests.c.owner == self.instance_id)
                .values(state=state)
            )
            if ended.rowcount == 0:
                return  # Another server took it over and records its own: one request, one evaluation.
            _record(connection, evaluation, key, dump(evaluation))

        await self._run(self._writer, write)

    async def prune(self, older_than: float | None, maximum_bytes: int | None) -> Pruned:
        """Take out what was recorded, or last used, more than `older_than` seconds ago, and the oldest beyond `maximum_bytes`:
        evaluations with their requests, and problems that nothing goes by. What is accepted and not finished always stays."""
        before = time.time() - older_than if older_than is not None else 0.0
        removed = Pruned()
        while more := await self._run(
            self._writer, lambda connection: retention.prune(connection, before, maximum_bytes)
        ):
            removed += more
        return removed

    async def evaluation(self, evaluation_id: str) -> Evaluation | None:
        """What is recorded under an id."""
        return await self._run(
            self._engine,
            lambda connection: _one(connection, _EVALUATION, evaluation_id),
        )

    async def cached(self, cache_key: str) -> Evaluation | None:
        """The newest evaluation that answers an equal request."""
        return await self._run(
            self._engine,
            lambda connection: _one(connection, _CACHED, cache_key),
        )

    async def page(self, problem_digest: str, before: int | None, size: int) -> tuple[list[Evaluation], int | None]:
        """Evaluations, newest first, and where the next page begins, if there is one."""

        def read(connection: sa.Connection) -> tuple[list[Evaluation], int | None]:
            statement = sa.select(evaluations.c.sequence, evaluations.c.evaluation)
            if problem_digest:
                statement = statement.where(evaluations.c.problem_digest == problem_digest)
            if before is not None:
                statement = statement.where(evaluations.c.sequence < before)
            rows = connection.execute(statement.order_by(evaluations.c.sequence.desc()).limit(size + 1)).all()
            found = [from_json(json.loads(row.evaluation), Evaluation) for row in rows[:size]]
            return found, int(rows[size - 1].sequence) if len(rows) > size else None

        return await self._run(self._engine, read)

    async def _run(self, engine: sa.Engine, work: Callable[[sa.Connection], T]) -> T:
        def transaction() -> T:
            with engine.begin() as connection:
                return work(connection)

        return await self._in_thread(transaction, self._readers if engine is self._engine else self._writers)

    async def _in_thread(self, transaction: Callable[[], T], threads: ThreadPoolExecutor | None = None) -> T:
        loop = asyncio.get_running_loop()
        # A transaction that has begun ends by itself: whoever waited for it may be cancelled, the store may not.
        return await asyncio.shield(loop.run_in_executor(threads or self._writers, _unavailable, transaction))


def _unavailable(work: Callable[[], T]) -> T:
    try:
        return work()
    except (sa.exc.DatabaseError, sqlite3.Error, OSError) as error:
        cause = getattr(error, "orig", None) or error
        raise StoreUnavailable(f"the evaluator's store cannot be used: {cause}") from error


def _record(
    connection: sa.Connection, evaluation: Evaluation, cache_key: str | None, text: str, *, new: bool = False
) -> None:
    if not new:
        connection.execute(_FORGET_EVALUATION, {"id": evaluation.evaluation_id})
    values = {
        "evaluation_id": evaluation.evaluation_id,
        "problem_digest": evaluation.problem_digest,
        "cache_key": cache_key,
        "evaluation": text,
        "bytes": len(text),
        "recorded_at": time.time(),
    }
    connection.execute(_RECORD, values)


def _one(connection: sa.Connection, statement: sa.Select[Any], key: str) -> Evaluation | None:
    text = connection.execute(statement, {"id": key}).scalar()
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
