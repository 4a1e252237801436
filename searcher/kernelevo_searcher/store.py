"""The run on disk: one SQLite file with an append-only event log and the texts that events refer to.

WAL, so that the command line and the report read while the engine writes; `synchronous=FULL`, because an event stands for
something paid (tokens, minutes of a GPU), there are a few a second at most, and WAL with NORMAL may lose the last ones when
the machine, rather than the process, goes down. One process at a time writes: it holds a lock that the operating system
releases when the process ends, however it ends.
"""

from __future__ import annotations

import json
import sqlite3
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

import sqlalchemy as sa

from kernelevo_api.json import from_json, to_json
from kernelevo_searcher.events import EVENT_KINDS, Event, Record, event_kind, text_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

__all__ = ["RunInUse", "RunLock", "RunNotFound", "RunStore", "StoreError", "read_records"]

RUN_FILE = "run.sqlite"
LOCK_FILE = "run.lock"
FORMAT = 1

_metadata = sa.MetaData()
_events = sa.Table(
    "events",
    _metadata,
    sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("time", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("payload", sa.Text, nullable=False),
)
_blobs = sa.Table(
    "blobs",
    _metadata,
    sa.Column("digest", sa.Text, primary_key=True),
    sa.Column("text", sa.Text, nullable=False),
)
_APPEND_ONLY = tuple(
    f"CREATE TRIGGER IF NOT EXISTS events_no_{verb.lower()} BEFORE {verb} ON events "
    "BEGIN SELECT RAISE(ABORT, 'the event log is append-only'); END"
    for verb in ("UPDATE", "DELETE")
)


def steady_clock() -> Callable[[], datetime]:
    """A clock in UTC that goes on evenly from now, whatever is done to the system's."""
    start, began = datetime.now(UTC), time.monotonic()
    return lambda: start + timedelta(seconds=time.monotonic() - began)


class StoreError(Exception):
    """The run on disk cannot be used; the message says what to do."""


class RunNotFound(StoreError):
    """There is no run in this folder."""


class RunInUse(StoreError):
    """Another process works on this run."""


class RunLock:
    """The right to write a run, held until `release` or the end of the process.

    An exclusive transaction on a file of its own: SQLite's locks exist on every system, and die with their process.
    """

    def __init__(self, run_dir: Path) -> None:
        self._connection = sqlite3.connect(run_dir / LOCK_FILE, timeout=0, isolation_level=None)
        try:
            self._connection.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            self._connection.close()
            raise RunInUse(
                f"{run_dir} is being worked on by another process. Wait until it ends, or stop it, and try again."
            ) from error

    def release(self) -> None:
        """Give the right back."""
        self._connection.close()


def _engine(path: Path, *, read_only: bool = False) -> sa.Engine:
    engine = sa.create_engine("sqlite://", creator=lambda: _connect(path, read_only), poolclass=sa.pool.StaticPool)

    # Without this, Python's driver begins transactions only before it writes, and SQLAlchemy's own begin does nothing.
    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")

    return engine


def _connect(path: Path, read_only: bool) -> sqlite3.Connection:
    mode = "ro" if read_only else "rwc"
    connection = sqlite3.connect(
        f"{path.resolve().as_uri()}?mode={mode}", uri=True, timeout=10, isolation_level=None, check_same_thread=False
    )
    if not read_only:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
    return connection


class RunStore:
    """The log and the texts of one run. Not for use by several threads at once.

    Attributes:
        clock: tells the time of events, in UTC.
    """

    def __init__(self, run_dir: Path, engine: sa.Engine, lock: RunLock | None, next_sequence: int) -> None:
        self.run_dir = run_dir
        self.clock = steady_clock()
        self._engine = engine
        self._lock = lock
        self._next = next_sequence

    @classmethod
    def create(cls, run_dir: Path) -> Self:
        """A new run in a folder that holds none yet.

        Raises:
            StoreError: the folder holds a run, or cannot be written.
        """
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
            lock = RunLock(run_dir)
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"cannot create the run in {run_dir}: {error}") from error
        try:
            if (run_dir / RUN_FILE).exists() and _holds_events(run_dir / RUN_FILE):
                raise StoreError(f"{run_dir} holds a run already. Go on with it: kernelevo evolve --resume {run_dir}")
            engine = _engine(run_dir / RUN_FILE)
            _metadata.create_all(engine)
            with engine.begin() as connection:
                for statement in _APPEND_ONLY:
                    connection.exec_driver_sql(statement)
                connection.exec_driver_sql(f"PRAGMA user_version={FORMAT}")
        except sa.exc.SQLAlchemyError as error:
            lock.release()
            raise StoreError(f"cannot create the run in {run_dir}: {error}") from error
        except BaseException:
            lock.release()
            raise
        return cls(run_dir, engine, lock, 1)

    @classmethod
    def open(cls, run_dir: Path, *, read_only: bool = False) -> Self:
        """A run that is there. Opened to write, it is locked against every other writer.

        Raises:
            RunNotFound: there is no run in this folder.
            RunInUse: another process works on it.
        """
        path = run_dir / RUN_FILE
        if not path.is_file() or not _holds_events(path):
            raise RunNotFound(f"there is no run in {run_dir} (no {RUN_FILE} with events in it)")
        lock = None if read_only else RunLock(run_dir)
        try:
            engine = _engine(path, read_only=read_only)
            with engine.begin() as connection:
                version = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
                if version != FORMAT:
                    raise StoreError(
                        f"{path} has format {version}, this KernelEvo writes {FORMAT}. Use the version that wrote it."
                    )
                last = connection.scalar(sa.select(sa.func.max(_events.c.sequence)))
        except BaseException:
            if lock is not None:
                lock.release()
            raise
        return cls(run_dir, engine, lock, (last or 0) + 1)

    def append(self, *events: Event, texts: Iterable[str] = (), at: datetime | None = None) -> tuple[Record, ...]:
        """Write events, and the texts they refer to, in one transaction. On return they are on disk.

        Args:
            at: their time; absent: now.
        """
        at = at or self.clock()
        records = tuple(
            Record(sequence=self._next + offset, time=at, event=event) for offset, event in enumerate(events)
        )
        with self._engine.begin() as connection:
            blobs = [{"digest": text_digest(text), "text": text} for text in texts]
            if blobs:
                connection.execute(sa.insert(_blobs).prefix_with("OR IGNORE"), blobs)
            connection.execute(sa.insert(_events), [_row(record) for record in records])
        self._next += len(records)
        return records

    def records(self, *, after: int = 0) -> Iterator[Record]:
        """The log from the event after the given one."""
        statement = sa.select(_events).where(_events.c.sequence > after).order_by(_events.c.sequence)
        with self._engine.begin() as connection:
            rows = connection.execute(statement).all()
        for row in rows:
            yield _record(row)

    def lines(self, *, after: int = 0) -> list[str]:
        """The log as it is stored, a line of JSON an event: equal runs have equal lines, to the byte."""
        statement = sa.select(_events).where(_events.c.sequence > after).order_by(_events.c.sequence)
        with self._engine.begin() as connection:
            rows = connection.execute(statement).all()
        return [
            f'{{"sequence": {row.sequence}, "time": "{row.time}", "kind": "{row.kind}", "event": {row.payload}}}'
            for row in rows
        ]

    def text(self, digest: str) -> str:
        """The text under this digest.

        Raises:
            KeyError: no such text.
        """
        with self._engine.begin() as connection:
            text = connection.scalar(sa.select(_blobs.c.text).where(_blobs.c.digest == digest))
        if text is None:
            raise KeyError(digest)
        return str(text)

    def close(self) -> None:
        """Close the file and give up the lock."""
        self._engine.dispose()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_records(run_dir: Path) -> tuple[Record, ...]:
    """The whole log of a run, also while another process writes it.

    Raises:
        RunNotFound: there is no run in this folder.
    """
    with RunStore.open(run_dir, read_only=True) as store:
        return tuple(store.records())


def _holds_events(path: Path) -> bool:
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        try:
            return connection.execute("SELECT 1 FROM events LIMIT 1").fetchone() is not None
        finally:
            connection.close()
    except sqlite3.DatabaseError:
        return False


def _row(record: Record) -> dict[str, Any]:
    return {
        "sequence": record.sequence,
        "time": record.time.isoformat(),
        "kind": event_kind(type(record.event)),
        "payload": json.dumps(to_json(record.event), sort_keys=True, allow_nan=False),
    }


def _record(row: sa.Row[Any]) -> Record:
    event_type = EVENT_KINDS.get(row.kind)
    if event_type is None:
        raise StoreError(f"the log holds an event of a kind that is not known here: {row.kind}")
    return Record(
        sequence=row.sequence,
        time=datetime.fromisoformat(row.time),
        event=from_json(json.loads(row.payload), event_type),
    )
