"""The store's tables: the same in SQLite and in PostgreSQL."""

from __future__ import annotations

import sqlalchemy as sa

SCHEMA_VERSION = 2
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
)
reports = sa.Table(
    "reports",
    metadata,
    sa.Column("problem_digest", sa.Text, sa.ForeignKey("problems.digest"), primary_key=True),
    sa.Column("environment", sa.Text, primary_key=True),
    sa.Column("report", sa.Text, nullable=False),
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
