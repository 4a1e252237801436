"""Where the store's tables live: a SQLite file of one server, or a PostgreSQL database that several share.

A database knows which servers live: of two on one state folder the second does not start, and what a server promised is taken
over by another only once that server is gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import threading
import uuid
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from kernelevo_api.errors import StoreUnavailable

if TYPE_CHECKING:
    import sqlite3
    from io import TextIOWrapper
    from pathlib import Path

_DRIVER = "postgresql+psycopg"
CONNECT_S = 10
SQLITE_CACHE_KIB = 256
"""Of pages that one connection keeps. What is asked for is small and mostly new, and the system keeps the file: more would only
take longer to fill, in each of six connections."""


class StoreLocked(Exception):
    """Another evaluator works on this state folder."""


class StateFolder:
    """The folder of one server: held alone, and named."""

    def __init__(self, path: Path) -> None:
        """Raises StoreLocked, StoreUnavailable."""
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock: TextIOWrapper = (path / "lock").open("a+")
        except OSError as error:
            raise StoreUnavailable(f"the state folder {path} cannot be used: {error}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise StoreLocked(f"another evaluator works on {path}; give this one its own with --state-dir") from error
        try:
            self.instance_id = self._name()
        except OSError as error:
            self._lock.close()
            raise StoreUnavailable(f"the state folder {path} cannot be used: {error}") from error

    def _name(self) -> str:
        file = self.path / "instance"
        with contextlib.suppress(FileNotFoundError, ValueError):
            return str(uuid.UUID(file.read_text(encoding="ascii").strip()))
        name = str(uuid.uuid4())
        temporary = file.with_suffix(".new")
        temporary.write_text(f"{name}\n", encoding="ascii")
        temporary.replace(file)
        return name

    def close(self) -> None:
        """Let go of it."""
        self._lock.close()


class Database(ABC):
    """An engine, and what differs between the kinds of database."""

    engine: sa.Engine
    writer: sa.Engine
    """For transactions that write."""
    hasty: sa.Engine
    """For transactions that write what a power cut may take; the end of this process, however it ends, takes none."""
    writers: int
    """How many transactions may write at once."""

    @abstractmethod
    def insert(self, table: sa.Table) -> Any:
        """An INSERT that knows `on_conflict_do_…`."""

    @abstractmethod
    def lives(self, instance_id: str) -> bool:
        """Whether a server of this name works on this database now."""

    @abstractmethod
    def assert_alive(self) -> None:
        """Make sure that others see this server as one that lives."""

    def close(self) -> None:
        """End every connection."""
        self.engine.dispose()


class SqliteDatabase(Database):
    """One file, one server: the folder's lock says that it is alone."""

    def __init__(self, folder: StateFolder) -> None:
        self._own = folder.instance_id
        url = f"sqlite:///{folder.path / 'evaluator.sqlite'}"
        self.engine, hasty = (sa.create_engine(url, connect_args={"timeout": CONNECT_S}) for _ in range(2))
        sa.event.listen(self.engine, "connect", _configure_sqlite)
        sa.event.listen(hasty, "connect", _configure_hasty_sqlite)
        for engine in (self.engine, hasty):
            sa.event.listen(engine, "begin", _begin_sqlite)
        self.writer = self.engine.execution_options(write=True)
        self.hasty = hasty.execution_options(write=True)
        # More would wait for each other in SQLite's own way, which is to sleep and try again.
        self.writers = 1

    def insert(self, table: sa.Table) -> Any:
        return sqlite.insert(table)

    def lives(self, instance_id: str) -> bool:
        return instance_id == self._own

    def assert_alive(self) -> None:
        return

    def close(self) -> None:
        self.hasty.dispose()
        super().close()


class PostgresDatabase(Database):
    """A shared database. Each server holds an advisory lock of its name for as long as its connection lives."""

    def __init__(self, url: str, folder: StateFolder) -> None:
        """Raises StoreUnavailable: no such database, or no driver."""
        self._own = folder.instance_id
        try:
            parsed = sa.make_url(url)
            if parsed.get_backend_name() != "postgresql":
                raise StoreUnavailable("database_url is no PostgreSQL address; write postgresql://user@host/name")
            self.engine = self.writer = sa.create_engine(
                parsed.set(drivername=_DRIVER),
                pool_pre_ping=True,
                pool_size=4,
                connect_args={"connect_timeout": CONNECT_S},
            )
        except sa.exc.ArgumentError:
            # Not the library's words: they may hold the password.
            raise StoreUnavailable("database_url is no address; write postgresql://user@host/name") from None
        except ModuleNotFoundError as error:
            raise StoreUnavailable("PostgreSQL needs psycopg: pip install 'kernelevo[postgresql]'") from error
        sa.event.listen(self.engine, "begin", _begin_postgres)
        self.hasty = self.engine.execution_options(hasty=True)
        self.writers = self.engine.pool.size()  # type: ignore[attr-defined]
        self._guard = threading.Lock()
        self._life: sa.Connection | None = None

    def insert(self, table: sa.Table) -> Any:
        return postgresql.insert(table)

    def lives(self, instance_id: str) -> bool:
        if instance_id == self._own:
            return True
        with self.engine.begin() as connection:
            free = connection.execute(sa.select(sa.func.pg_try_advisory_xact_lock(_lock_number(instance_id)))).scalar()
            return not free

    def assert_alive(self) -> None:
        with self._guard:
            if self._life is not None:
                try:
                    self._life.exec_driver_sql("SELECT 1")
                    return
                except sa.exc.DBAPIError:
                    self._life.invalidate()
                    self._life.close()
                    self._life = None
            life = self.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            held = life.execute(sa.select(sa.func.pg_try_advisory_lock(_lock_number(self._own)))).scalar()
            if not held:
                life.close()
                raise StoreUnavailable("the database still holds this server's last connection; try again")
            self._life = life

    def close(self) -> None:
        with self._guard:
            if self._life is not None:
                # Not back into the pool: the lock goes with the connection.
                self._life.invalidate()
                self._life.close()
                self._life = None
        super().close()


def _lock_number(instance_id: str) -> int:
    return int.from_bytes(hashlib.sha256(f"kernelevo {instance_id}".encode()).digest()[:8], "big", signed=True)


def _configure_sqlite(connection: sqlite3.Connection, _record: object, synchronous: str = "FULL") -> None:
    # SQLAlchemy begins transactions itself (`_begin_sqlite`), so that reading and writing are one.
    connection.isolation_level = None
    for pragma in (
        "journal_mode=WAL",
        f"synchronous={synchronous}",
        "foreign_keys=ON",
        "busy_timeout=10000",
        f"cache_size={-SQLITE_CACHE_KIB}",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _configure_hasty_sqlite(connection: sqlite3.Connection, record: object) -> None:
    # Written to the log at once, and on the disk with the next transaction that waits for it.
    _configure_sqlite(connection, record, "NORMAL")


def _begin_sqlite(connection: sa.Connection) -> None:
    # A writer takes its lock at once: one that starts as a reader can be refused half-way.
    write = connection.get_execution_options().get("write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _begin_postgres(connection: sa.Connection) -> None:
    if connection.get_execution_options().get("hasty", False):
        connection.exec_driver_sql("SET LOCAL synchronous_commit TO off")
