"""The store's promises, kept by SQLite and by PostgreSQL alike."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from scripted_executor import PROBLEM

from kernelevo_api import errors
from kernelevo_api.types import Candidate, EvaluateRequest, Evaluation, Problem, ProblemReport, Verdict
from kernelevo_evaluator.retention import Pruned
from kernelevo_evaluator.store import ABANDONED, ACCEPTED, DONE, AcceptedRequest, Store, StoreLocked

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(120)

STRANGE = "\x00 \u2028 \U0001f642 ' \" \\ %s"


class Stores:
    """Servers of one test, each with a folder of its own, on one database where it can be shared."""

    def __init__(self, folder: Path, url: str | None) -> None:
        self.folder = folder
        self.url = url
        self._open: list[Store] = []

    async def open(self, name: str = "one") -> Store:
        store = await Store.open(self.folder / name, self.url)
        self._open.append(store)
        return store

    async def close(self, store: Store) -> None:
        self._open.remove(store)
        await store.close()

    async def close_all(self) -> None:
        for store in list(self._open):
            await self.close(store)


@pytest.fixture
async def stores(folder: Path, database_url: str | None) -> AsyncIterator[Stores]:
    stores = Stores(folder, database_url)
    try:
        yield stores
    finally:
        await stores.close_all()


def accepted(**fields: Any) -> AcceptedRequest:
    request_id = str(uuid.uuid4())
    return AcceptedRequest(
        **{
            "request_id": request_id,
            "evaluation_id": str(uuid.uuid4()),
            "client_id": "somebody",
            "content": "content",
            "state": ACCEPTED,
            "request": EvaluateRequest(request_id=request_id, candidate=Candidate(source=STRANGE)),
            **fields,
        }
    )


def evaluation_of(one: AcceptedRequest, **fields: Any) -> Evaluation:
    return Evaluation(
        **{
            "evaluation_id": one.evaluation_id,
            "request_id": one.request_id,
            "problem_digest": "d" * 64,
            "verdict": Verdict.PASSED,
            "message": STRANGE,
            **fields,
        }
    )


async def test_what_is_written_is_there_in_the_next_life(stores: Stores) -> None:
    store = await stores.open()
    one, two = accepted(), accepted()
    problem = Problem(source=PROBLEM, name=STRANGE)
    report = ProblemReport(problem_digest="d" * 64, name=STRANGE)
    await store.save_problem("d" * 64, problem, "environment", report)
    await store.accept(one)
    await store.accept(two)
    await store.finish(one.request_id, evaluation_of(one), "key")
    name = store.instance_id
    await stores.close(store)

    store = await stores.open()
    assert store.instance_id == name
    assert await store.problem("d" * 64) == problem
    assert await store.report("d" * 64, "environment") == report
    assert await store.report("d" * 64, "another") is None
    assert await store.interrupted() == [two]
    assert await store.request(request_id=one.request_id) == replace(one, state=DONE)
    assert await store.request(evaluation_id=two.evaluation_id) == two
    assert await store.evaluation(one.evaluation_id) == evaluation_of(one)
    assert await store.cached("key") == evaluation_of(one)
    assert await store.cached("another") is None


async def test_what_was_given_up_may_be_promised_again_and_what_is_done_may_not(stores: Stores) -> None:
    store = await stores.open()
    one, two = accepted(), accepted()
    await store.accept(one)
    await store.abandon(one.request_id)
    assert await store.interrupted() == []
    await store.accept(one)
    assert await store.interrupted() == [one]
    await store.accept(two)
    await store.finish(two.request_id, evaluation_of(two), None)
    with pytest.raises(errors.EvaluatorFault):
        await store.accept(two)
    assert (await store.request(request_id=two.request_id)) == replace(two, state=DONE)


async def test_an_answer_that_is_known_is_written_with_its_request(stores: Stores) -> None:
    store = await stores.open()
    new, given_up, open_one = accepted(), accepted(), accepted()
    await store.accept(given_up)
    await store.abandon(given_up.request_id)
    await store.accept(open_one)
    for one in (new, given_up, open_one):
        await store.answer(one, evaluation_of(one, from_cache=True))
    with pytest.raises(errors.EvaluatorFault):
        await store.answer(new, evaluation_of(new))
    await stores.close(store)
    store = await stores.open()
    assert await store.interrupted() == []
    for one in (new, given_up, open_one):
        assert await store.request(request_id=one.request_id) == replace(one, state=DONE)
        assert await store.evaluation(one.evaluation_id) == evaluation_of(one, from_cache=True)


async def test_only_answers_that_are_known_do_not_wait_for_the_disk(stores: Stores) -> None:
    store = await stores.open()
    asked = {"sqlite": "PRAGMA synchronous", "postgresql": "SHOW synchronous_commit"}[store._engine.dialect.name]
    waits, hastes = {"sqlite": (2, 1), "postgresql": ("on", "off")}[store._engine.dialect.name]
    for engine, expected in ((store._writer, waits), (store._database.hasty, hastes), (store._writer, waits)):
        with engine.begin() as connection:
            assert connection.exec_driver_sql(asked).scalar() == expected


async def test_verdicts_of_one_moment_are_never_found_by_content(stores: Stores) -> None:
    store = await stores.open()
    one = accepted()
    await store.accept(one)
    await store.finish(one.request_id, evaluation_of(one, verdict=Verdict.TIMEOUT), "key")
    assert await store.cached("key") is None


async def test_pages(stores: Stores) -> None:
    store = await stores.open()
    for number in range(5):
        one = accepted()
        await store.accept(one)
        await store.finish(one.request_id, evaluation_of(one, message=str(number)), None)
    page, following = await store.page("d" * 64, None, 3)
    assert [one.message for one in page] == ["4", "3", "2"]
    page, following = await store.page("d" * 64, following, 3)
    assert ([one.message for one in page], following) == (["1", "0"], None)
    assert await store.page("e" * 64, None, 3) == ([], None)


async def test_old_ones_go_first_and_what_is_not_finished_stays(stores: Stores) -> None:
    store = await stores.open()
    done = [accepted() for _ in range(6)]
    for one in done:
        await store.accept(one)
        await store.finish(one.request_id, evaluation_of(one), None)
    waiting = accepted()
    await store.accept(waiting)
    again = done[0]
    await store._run(
        store._writer,
        lambda connection: connection.execute(
            sa.text("UPDATE requests SET state = :state WHERE request_id = :id"),
            {"state": ACCEPTED, "id": again.request_id},
        ),
    )
    page, _ = await store.page("", None, 10)
    with store._engine.connect() as connection:
        total = connection.execute(sa.text("SELECT sum(bytes) FROM evaluations")).scalar()
    assert not await store.prune(3600, total)
    # Not the oldest: it is being carried out again.
    assert await store.prune(None, total // 2) == Pruned(evaluations=3)
    assert (await store.page("", None, 10))[0] == [*page[:2], page[-1]]
    assert await store.request(request_id=done[1].request_id) is None
    assert await store.prune(-1.0, None) == Pruned(evaluations=2)
    assert {one.request_id for one in await store.interrupted()} == {waiting.request_id, again.request_id}


async def test_read_only_is_a_clear_error_and_leaves_nothing_behind(stores: Stores) -> None:
    store = await stores.open()
    one, two = accepted(), accepted()
    await store.accept(one)
    postgres = store._engine.dialect.name == "postgresql"
    state = ["on" if postgres else "1"]

    def read_only(connection: Any, *_: Any) -> None:
        cursor = connection.cursor()
        cursor.execute(f"SET default_transaction_read_only={state[0]}" if postgres else f"PRAGMA query_only={state[0]}")
        cursor.close()
        if postgres:
            connection.commit()

    sa.event.listen(store._engine, "checkout", read_only)
    with pytest.raises(errors.StoreUnavailable, match="store cannot be used"):
        await store.finish(one.request_id, evaluation_of(one), "key")
    with pytest.raises(errors.StoreUnavailable):
        await store.accept(two)
    state[0] = "off" if postgres else "0"
    assert await store.interrupted() == [one]
    assert await store.cached("key") is None
    await store.finish(one.request_id, evaluation_of(one), "key")
    assert await store.cached("key") == evaluation_of(one)


async def test_one_folder_has_one_server(stores: Stores) -> None:
    await stores.open()
    with pytest.raises(StoreLocked, match="--state-dir"):
        await stores.open()


async def test_a_store_of_another_version_says_so(stores: Stores) -> None:
    store = await stores.open()
    await store._run(store._writer, lambda c: c.execute(sa.text("UPDATE facts SET value = '1'")))
    await stores.close(store)
    with pytest.raises(errors.StoreUnavailable, match="of version 1"):
        await stores.open()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mysql://user:secret@host/name", "no PostgreSQL address"),
        ("not an address with secret", "no address"),
        ("postgresql://user:secret@127.0.0.1:9/name", "store cannot be used"),
    ],
)
async def test_what_is_no_database_says_so_without_its_password(folder: Path, url: str, words: str) -> None:
    with pytest.raises(errors.StoreUnavailable, match=words) as caught:
        await Store.open(folder / "state", url)
    assert "secret" not in str(caught.value)


class TestShared:
    """Several servers on one database."""

    @pytest.fixture
    async def stores(self, folder: Path, postgres: Any) -> AsyncIterator[Stores]:
        stores = Stores(folder, postgres.new_database())
        try:
            yield stores
        finally:
            await stores.close_all()

    async def test_that_start_at_once_share_results(self, stores: Stores) -> None:
        one, two = await asyncio.gather(stores.open("one"), stores.open("two"))
        assert one.instance_id != two.instance_id
        asked = accepted()
        await one.accept(asked)
        await one.finish(asked.request_id, evaluation_of(asked), "key")
        assert await two.cached("key") == await two.evaluation(asked.evaluation_id) == evaluation_of(asked)
        assert (await two.request(request_id=asked.request_id)) == replace(asked, state=DONE)

    async def test_each_carries_out_what_it_accepted_itself(self, stores: Stores) -> None:
        one, two = await stores.open("one"), await stores.open("two")
        asked = accepted()
        await one.accept(asked)
        assert await two.interrupted() == []
        with pytest.raises(errors.EvaluatorFault, match="another evaluator"):
            await two.accept(asked)
        assert await one.interrupted() == [asked]

    async def test_what_a_dead_one_left_is_taken_over_once(self, stores: Stores) -> None:
        one, two, three = [await stores.open(name) for name in ("one", "two", "three")]
        asked = accepted()
        await one.accept(asked)
        await stores.close(one)
        done = await asyncio.gather(two.accept(asked), three.accept(asked), return_exceptions=True)
        assert sorted(type(one) for one in done if one) == [errors.EvaluatorFault]
        taken = two if done[0] is None else three
        assert await taken.interrupted() == [asked]
        # The first comes back, finds nothing of its own, and its late result is not recorded beside the other's.
        back = await stores.open("one")
        assert await back.interrupted() == []
        await back.finish(asked.request_id, evaluation_of(asked, message="late"), None)
        assert await back.evaluation(asked.evaluation_id) is None
        await taken.finish(asked.request_id, evaluation_of(asked), None)
        assert await back.evaluation(asked.evaluation_id) == evaluation_of(asked)
        await taken.abandon(accepted(state=ABANDONED).request_id)

    async def test_what_one_holds_is_not_anothers_to_answer_until_it_is_dead(self, stores: Stores) -> None:
        one, two = await stores.open("one"), await stores.open("two")
        asked = accepted()
        await one.accept(asked)
        with pytest.raises(errors.EvaluatorFault, match="another evaluator"):
            await two.answer(asked, evaluation_of(asked))
        await stores.close(one)
        await two.answer(asked, evaluation_of(asked))
        assert await two.evaluation(asked.evaluation_id) == evaluation_of(asked)
        assert await (await stores.open("one")).interrupted() == []

    async def test_a_lost_connection_is_made_anew(self, stores: Stores) -> None:
        one, two = await stores.open("one"), await stores.open("two")
        asked = accepted()
        await one.accept(asked)
        with two._engine.connect() as connection:
            connection.execute(
                sa.text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            )
        await one.accept(accepted())
        with pytest.raises(errors.EvaluatorFault):
            await two.accept(asked)
