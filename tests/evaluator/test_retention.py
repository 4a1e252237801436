"""What the store forgets of problems, and what it never forgets."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from scripted_executor import PROBLEM, candidate
from test_store import Stores, accepted, evaluation_of, stores  # noqa: F401 - a fixture

from kernelevo_api import errors
from kernelevo_api.client import problem_digest
from kernelevo_api.types import Candidate, EvaluateRequest, Problem, ProblemReport, Verdict
from kernelevo_evaluator import retention
from kernelevo_evaluator.retention import Pruned
from kernelevo_evaluator.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    from kernelevo_evaluator.store import AcceptedRequest, Store

pytestmark = pytest.mark.timeout(120)
DIGESTS = [letter * 64 for letter in "abcd"]


async def register(store: Store, *digests: str) -> None:
    for digest in digests:
        report = ProblemReport(problem_digest=digest, name="n" * 1000)
        await store.save_problem(digest, Problem(source=PROBLEM), "environment", report)


async def left(store: Store) -> list[str]:
    return [digest for digest in DIGESTS if await store.problem(digest) is not None]


def of(digest: str) -> AcceptedRequest:
    one = accepted()
    return replace(one, request=replace(one.request, problem_digest=digest))


async def test_a_problem_goes_once_nothing_goes_by_it(stores: Stores) -> None:  # noqa: F811
    store = await stores.open()
    await register(store, *DIGESTS)
    recorded, promised = of(DIGESTS[0]), of(DIGESTS[1])
    for one in (recorded, promised):
        await store.accept(one)
    await store.finish(recorded.request_id, evaluation_of(recorded, problem_digest=DIGESTS[0]), None)
    assert not await store.prune(3600, None)
    assert await left(store) == DIGESTS
    # All of it is old: what was recorded goes first, and its problem once it has gone.
    assert await store.prune(-1.0, None) == Pruned(evaluations=1, problems=3)
    assert await left(store) == [DIGESTS[1]]
    assert await store.report(DIGESTS[0], "environment") is None
    assert await store.interrupted() == [promised]
    await store.abandon(promised.request_id)
    assert await store.prune(-1.0, None) == Pruned(problems=1)
    with pytest.raises(errors.UnknownProblem):
        await store.accept(of(DIGESTS[1]))
    assert await store.interrupted() == []


async def test_beyond_a_size_the_longest_unused_goes(stores: Stores) -> None:  # noqa: F811
    store = await stores.open()
    await register(store, *DIGESTS)
    assert await store.use_problem(DIGESTS[0])
    assert not await store.use_problem("e" * 64)
    await register(store, DIGESTS[1])
    with store._engine.connect() as connection:
        tables = [
            connection.execute(sa.text(f"SELECT sum(bytes) FROM {one}")).scalar() for one in ("problems", "reports")
        ]
        longest = connection.execute(sa.text("SELECT length(problem) FROM problems")).scalars().all()
    assert tables[0] == sum(longest)
    total = sum(tables)
    assert not await store.prune(None, total)
    assert await store.prune(None, total * 5 // 8) == Pruned(problems=2)
    assert await left(store) == DIGESTS[:2]


async def test_one_that_is_used_meanwhile_stays(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    store = await stores.open()
    await register(store, *DIGESTS[:2])
    look = retention._problems

    def used_then(connection: sa.Connection, limit: float) -> Any:
        found = look(connection, limit)
        connection.execute(
            sa.text("UPDATE problems SET used_at = used_at + 3600 WHERE digest = :one"), {"one": DIGESTS[0]}
        )
        return found

    monkeypatch.setattr(retention, "_problems", used_then)
    assert await store.prune(-1.0, None) == Pruned(problems=1)
    assert await left(store) == DIGESTS[:1]


async def test_a_store_of_the_version_before_is_brought_up(stores: Stores) -> None:  # noqa: F811
    store = await stores.open()
    await register(store, *DIGESTS[:1])
    one = of(DIGESTS[0])
    await store.accept(one)
    with store._writer.begin() as connection:
        connection.exec_driver_sql("DROP INDEX ix_problems_used_at")
        for table, column in (
            ("problems", "bytes"),
            ("problems", "used_at"),
            ("reports", "bytes"),
            ("requests", "problem_digest"),
        ):
            connection.exec_driver_sql(f"ALTER TABLE {table} DROP COLUMN {column}")
        connection.exec_driver_sql("UPDATE facts SET value = '2' WHERE name = 'schema_version'")
    await stores.close(store)
    store = await stores.open()
    with store._engine.connect() as connection:
        assert connection.execute(sa.text("SELECT value FROM facts WHERE name = 'schema_version'")).scalar() == str(
            SCHEMA_VERSION
        )
    assert await store.interrupted() == [one]
    assert not await store.prune(-1.0, None), "its request is open"
    await store.finish(one.request_id, evaluation_of(one, problem_digest=DIGESTS[0]), None)
    assert await store.prune(-1.0, None) == Pruned(evaluations=1, problems=1)


async def test_a_problem_that_is_gone_is_asked_for_again(host: Any, make_request: Any) -> None:
    """In memory or not: what the store does not hold is not promised by its digest."""
    client = await host.start()
    await client.register_problem(Problem(source=PROBLEM))
    digest = problem_digest(PROBLEM)
    await client.evaluate(make_request(problem=None, problem_digest=digest))
    store = host.server._store
    assert await store.prune(-1.0, None) == Pruned(evaluations=1, problems=1)
    other = EvaluateRequest(problem_digest=digest, candidate=Candidate(source=candidate("passed", "other")))
    with pytest.raises(errors.UnknownProblem):
        await host.client().evaluate(other)
    assert (await client.evaluate(other)).verdict is Verdict.PASSED  # Its client knows the problem, and registers it.
    assert await store.problem(digest) is not None
    assert await store.prune(-1.0, None)
    # Of a request that brings it along nothing is asked.
    assert (await host.client().evaluate(make_request(extra="third"))).verdict is Verdict.PASSED
    assert await store.prune(-1.0, None)
    # Registered again, it is there again, however it is known.
    await client.register_problem(Problem(source=PROBLEM))
    assert await store.problem(digest) is not None
