"""The store's tables: the same in SQLite and in PostgreSQL."""

from __future__ import annotations

import json
import time

import sqlalchemy as sa

SCHEMA_VERSION = 3
ACCEPTED, DONE, ABANDONED = "accepted", "done", "abandoned"
"""States of a request."""

metadata = sa.MetaData()
_sequence = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

facts = sa.Table(
    "facts", metadata, sa.Column("name", sa.Text, primary_key=True), sa.Column("value", sa.Text, nullable=False)
)
problems = sa.Table(
    "problems",
    metadata,
    sa.Column("digest", sa.Text, primary_key=True),
    sa.Column("problem", sa.Text, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False, server_default="0"),  # of what stands here, for the store's limit
    sa.Column("used_at", sa.Double, nullable=False, server_default="0", index=True),  # seconds since 1970
)
reports = sa.Table(
    "reports",
    metadata,
    sa.Column("problem_digest", sa.Text, sa.ForeignKey("problems.digest"), primary_key=True),
    sa.Column("environment", sa.Text, primary_key=True),
    sa.Column("report", sa.Text, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False, server_default="0"),
)
requests = sa.Table(
    "requests",
    metadata,
    sa.Column("request_id", sa.Text, primary_key=True),
    sa.Column("evaluation_id", sa.Text, nullable=False, unique=True),
    sa.Column("owner", sa.Text, nullable=False),  # instance_id of the server that carries it out
    sa.Column("client_id", sa.Text, nullable=False),
    sa.Column("content", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False, index=True),
    sa.Column("request", sa.Text, nullable=False),
    sa.Column("accepted_at", sa.Double, nullable=False, index=True),  # seconds since 1970
    sa.Column(
        "problem_digest", sa.Text
    ),  # of a problem that stands in the store for it; null: the request holds its own
)
evaluations = sa.Table(
    "evaluations",
    metadata,
    sa.Column("sequence", _sequence, primary_key=True, autoincrement=True),
    sa.Column("evaluation_id", sa.Text, nullable=False, unique=True),
    sa.Column("problem_digest", sa.Text, nullable=False),
    sa.Column("cache_key", sa.Text),
    sa.Column("evaluation", sa.Text, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),  # of what stands here, for the store's limit
    sa.Column("recorded_at", sa.Double, nullable=False, index=True),  # seconds since 1970
    sa.Index("by_problem", "problem_digest", "sequence"),
    sa.Index("by_cache_key", "cache_key", "sequence"),
    sqlite_autoincrement=True,
)


def upgrade(connection: sa.Connection, found: str) -> str:
    """Bring tables of an earlier version to this one, where that can be done; the version that they then have."""
    if found != "2":
        return found
    for statement in (
        "ALTER TABLE problems ADD COLUMN bytes BIGINT NOT NULL DEFAULT 0",
        "ALTER TABLE problems ADD COLUMN used_at DOUBLE PRECISION NOT NULL DEFAULT 0",
        "ALTER TABLE reports ADD COLUMN bytes BIGINT NOT NULL DEFAULT 0",
        "ALTER TABLE requests ADD COLUMN problem_digest TEXT",
        "CREATE INDEX ix_problems_used_at ON problems (used_at)",
    ):
        connection.exec_driver_sql(statement)
    connection.execute(sa.update(problems).values(bytes=sa.func.length(problems.c.problem), used_at=time.time()))
    connection.execute(sa.update(reports).values(bytes=sa.func.length(reports.c.report)))
    for row in connection.execute(
        sa.select(requests.c.request_id, requests.c.request).where(requests.c.state == ACCEPTED)
    ).all():
        # Not by the database: PostgreSQL reads no JSON that holds a NUL.
        named = json.loads(row.request).get("problem_digest")
        connection.execute(
            sa.update(requests).where(requests.c.request_id == row.request_id).values(problem_digest=named)
        )
    connection.execute(sa.update(facts).where(facts.c.name == "schema_version").values(value=str(SCHEMA_VERSION)))
    return str(SCHEMA_VERSION)
