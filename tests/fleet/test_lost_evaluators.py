"""Evaluators that are killed in the middle of work: nothing lost, nothing doubled, and the lost ones are named."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

from tests.searcher.scripted_evaluator import KERNEL, PROBLEM

from kernelevo_api.pool import Change, EvaluatorPool, Notice, PoolSettings
from kernelevo_api.types import Candidate, EvaluateRequest, Problem, Verdict
from kernelevo_searcher.display import line_of
from kernelevo_searcher.engine import Engine, start_events
from kernelevo_searcher.events import (
    CandidateProposed,
    EvaluationFailed,
    EvaluationFinished,
    EvaluationStarted,
    EvaluatorChanged,
    RunFinished,
    RunSettings,
)
from kernelevo_searcher.state import replay
from kernelevo_searcher.store import RunStore, read_records

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fleet.conftest import Host

QUICK = PoolSettings(probe_s=0.1, longest_probe_s=0.2, rest_s=0.05, refresh_s=0.2)


async def test_a_search_that_loses_two_of_four_evaluators_finishes(
    hosts: Callable[..., list[Host]], tmp_path: Path
) -> None:
    four = hosts(4, simulated_s=0.1)
    lost = four[1:3]
    finished = 0

    def observe(record: Any, _state: Any) -> None:
        nonlocal finished
        if isinstance(record.event, EvaluationFinished):
            finished += 1
            if finished in (8, 14):
                # At once and within a call: what these hold is under way.
                lost[finished == 14].kill()

    event, texts = start_events(
        version="0",
        problem=Problem(source=PROBLEM, name="p"),
        settings=RunSettings(evaluations=40, seed=3, patience=1000),
        start=[("start", KERNEL)],
    )
    with RunStore.create(tmp_path / "run") as store:
        store.append(event, texts=texts)
        pool = EvaluatorPool.of([host.address for host in four], settings=QUICK)
        try:
            state = await Engine(store, pool, observe=observe).run()
        finally:
            await pool.close()

    records = read_records(tmp_path / "run")
    events = [record.event for record in records]
    assert [record.sequence for record in records] == list(range(1, len(records) + 1))
    assert replay(records) == state
    assert isinstance(events[-1], RunFinished) and events[-1].best_id is not None
    assert not state.in_flight and state.evaluated == 40
    # Each measurement was asked for once and came back once, under its own id.
    started = [event for event in events if isinstance(event, EvaluationStarted)]
    ended = [event for event in events if isinstance(event, EvaluationFinished)]
    assert not [event for event in events if isinstance(event, EvaluationFailed)]
    assert Counter(event.request_id for event in started) == Counter(event.request_id for event in ended)
    assert len({event.request_id for event in started}) == len(started)
    assert max(Counter((event.candidate_id, event.effort) for event in started).values()) == 1
    assert all(event.evaluation.request_id == event.request_id for event in ended)
    proposed = [event for event in events if isinstance(event, CandidateProposed)]
    assert len({event.normal_digest for event in proposed}) == len(proposed)
    # Something was under way on each when it was killed, and went elsewhere.
    for host in lost:
        sent = [event for event in started if event.evaluator == host.address]
        assert sent
    # The lost are named, to the log and to the person; the others are not.
    gone = [event for event in events if isinstance(event, EvaluatorChanged)]
    assert {event.evaluator for event in gone if event.change is Change.LOST} == {host.address for host in lost}
    told = [line_of(record, state) or "" for record in records if isinstance(record.event, EvaluatorChanged)]
    assert all(any(f"{host.address}: lost" in line for line in told) for host in lost)


async def test_a_killed_evaluator_comes_back_and_gets_work_again(hosts: Callable[..., list[Host]]) -> None:
    one, two = hosts(2, simulated_s=0.02)
    notices: list[Notice] = []
    changed = asyncio.Condition()

    def note(notice: Notice) -> None:
        notices.append(notice)

        async def wake() -> None:
            async with changed:
                changed.notify_all()

        waking.append(asyncio.ensure_future(wake()))

    waking: list[asyncio.Future[None]] = []

    async def until(change: Change, host: Host) -> None:
        async with asyncio.timeout(30), changed:
            await changed.wait_for(lambda: any((n.change, n.evaluator) == (change, host.address) for n in notices))

    async with EvaluatorPool.of([one.address, two.address], settings=QUICK, on_notice=note) as pool:
        await pool.connect()
        report = await pool.register(Problem(source=PROBLEM))

        def ask(number: int) -> EvaluateRequest:
            source = f"class ModelNew:\n    x = {number}\n"
            return EvaluateRequest(problem_digest=report.problem_digest, candidate=Candidate(source=source))

        two.kill()
        # Its health stream says so, without a request.
        await until(Change.LOST, two)
        assert pool.slots == 2
        found = await asyncio.gather(*(pool.evaluate(ask(number)) for number in range(6)))
        two.start()
        await until(Change.RETURNED, two)
        assert pool.slots == 4
        one.stop()
        await until(Change.LOST, one)
        found += await asyncio.gather(*(pool.evaluate(ask(number)) for number in range(6, 9)))
        assert [evaluation.verdict for evaluation in found] == [Verdict.PASSED] * 9
    await asyncio.gather(*waking)


async def test_hosts_come_and_go_with_the_file_that_names_them(
    hosts: Callable[..., list[Host]], tmp_path: Path
) -> None:
    one, two = hosts(2, simulated_s=0.02)
    names = tmp_path / "hosts.txt"
    names.write_text(f"{one.address}  # the first\n")
    notices: list[Notice] = []

    async def until(change: Change, name: str) -> None:
        async with asyncio.timeout(30):
            while not any((n.change, n.evaluator) == (change, name) for n in notices):
                await asyncio.sleep(0.02)

    async with EvaluatorPool.of([f"file:{names}"], settings=QUICK, on_notice=notices.append) as pool:
        await pool.connect()
        assert [endpoint.name for endpoint in pool.endpoints] == [one.address]
        report = await pool.register(Problem(source=PROBLEM))
        names.write_text(f"# both\n{one.address}\n{two.address}\n")
        await until(Change.JOINED, two.address)
        names.write_text("")
        # An empty list is a mistake, not an order to stop.
        await until(Change.LIST_UNREADABLE, f"file:{names}")
        assert len(pool.endpoints) == 2
        names.write_text(f"{two.address}\n")
        await until(Change.LEFT, one.address)
        request = EvaluateRequest(problem_digest=report.problem_digest, candidate=Candidate(source="class ModelNew: 1"))
        evaluation = await pool.evaluate(request)
        assert evaluation.verdict is Verdict.PASSED
        assert [endpoint.name for endpoint in pool.endpoints] == [two.address]


async def test_one_evaluator_under_two_names_counts_once(hosts: Callable[..., list[Host]], tmp_path: Path) -> None:
    (one,) = hosts(1, simulated_s=0.0)
    other = tmp_path / "other.sock"
    other.symlink_to(one.folder / "e.sock")
    notices: list[Notice] = []
    async with EvaluatorPool.of([one.address, f"unix:{other}"], settings=QUICK, on_notice=notices.append) as pool:
        await pool.connect()
        assert [endpoint.name for endpoint in pool.endpoints] == [one.address] and pool.slots == 2
    assert [(notice.change, notice.evaluator) for notice in notices] == [(Change.LEFT_OUT, f"unix:{other}")]
