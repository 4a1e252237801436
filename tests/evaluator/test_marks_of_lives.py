"""Marks of what runs: what counts as a life that was lost with it, and what does not. And what runs alone in the queue."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from kernelevo_evaluator import lives as module
from kernelevo_evaluator.lives import MOST, Lives
from kernelevo_evaluator.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path


async def lose(state: Path, key: str = "k") -> Lives:
    """A life that ends while it runs something, and the next one's view of it."""
    lives = await asyncio.to_thread(Lives.begin, state)
    running = lives.running(key, "an evaluation")
    await running.__aenter__()
    async with asyncio.timeout(30):
        while not any(path.suffix == "" and b"true" in path.read_bytes() for path in (state / "running").iterdir()):
            await asyncio.sleep(0.005)
    abandoned.append(running)
    return await asyncio.to_thread(Lives.begin, state)


abandoned: list[Any] = []
"""Kept: a context that is thrown away is closed, which a process that is killed does not do."""


async def settled(state: Path, count: int) -> None:
    async with asyncio.timeout(30):
        while len(list((state / "running").iterdir())) != count:
            await asyncio.sleep(0.005)


async def test_lives_are_counted_over_restarts_and_the_last_one_alone(tmp_path: Path) -> None:
    lives = await lose(tmp_path)
    assert lives.lost("k") == 1 and lives.lost("other") == 0
    assert not lives.is_to_run_alone("k") and not lives.why_not("k")
    lives = await lose(tmp_path)
    assert lives.is_to_run_alone("k") and not lives.why_not("k")
    lives = await lose(tmp_path)
    assert lives.lost("k") == MOST and "3 times" in lives.why_not("k")
    # A start alone adds nothing.
    assert Lives.begin(tmp_path).lost("k") == MOST
    lives.forgive("k")
    assert not lives.why_not("k") and Lives.begin(tmp_path).lost("k") == 0


async def test_what_came_to_an_end_is_forgotten_and_what_was_stopped_is_not(tmp_path: Path) -> None:
    lives = await lose(tmp_path)
    with pytest.raises(asyncio.CancelledError):
        async with lives.running("k", "an evaluation"):
            raise asyncio.CancelledError
    await asyncio.sleep(0.1)
    lives = Lives.begin(tmp_path)
    assert lives.lost("k") == 1
    with pytest.raises(RuntimeError):
        async with lives.running("k", "an evaluation"):
            raise RuntimeError("it failed, but the evaluator lives")
    await settled(tmp_path, 0)
    assert lives.lost("k") == 0


async def test_a_mark_stays_while_any_of_two_runs(tmp_path: Path) -> None:
    lives = Lives.begin(tmp_path)
    async with lives.running("k", "one"):
        async with lives.running("k", "two"):
            await settled(tmp_path, 1)
        await asyncio.sleep(0.05)
        await settled(tmp_path, 1)
    await settled(tmp_path, 0)


async def test_old_counts_and_half_written_marks_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await lose(tmp_path)
    (mark,) = (tmp_path / "running").iterdir()
    (tmp_path / "running" / "f.new").write_text("{")
    assert Lives.begin(tmp_path).lost("k") == 1
    assert list((tmp_path / "running").iterdir()) == [mark]
    long_ago = time.time() - 8 * 86_400
    os.utime(mark, (long_ago, long_ago))
    assert Lives.begin(tmp_path).lost("k") == 0 and not mark.exists()


@pytest.mark.parametrize("text", ["", "[1]", '{"what": "w", "lost": null, "running": true}', '{"lost": 1}'])
def test_a_mark_that_cannot_be_read_is_dropped(tmp_path: Path, text: str) -> None:
    Lives.begin(tmp_path)
    (tmp_path / "running" / "abc").write_text(text)
    Lives.begin(tmp_path)
    assert not list((tmp_path / "running").iterdir())


async def test_a_disk_that_takes_no_mark_stops_no_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lives = Lives.begin(tmp_path)

    def full(*_: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(module.os, "fsync", full)
    async with lives.running("k", "an evaluation"):
        pass
    await asyncio.sleep(0.05)
    assert lives.lost("k") == 0


class Works:
    """Pieces of work that note when they begin, and end when they are let go."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}

    def of(self, name: str) -> Callable[[Any], Awaitable[str]]:
        self.gates[name] = asyncio.Event()

        async def action(progress: Any) -> str:
            self.begun.append(name)
            await self.gates[name].wait()
            return name

        return action


async def test_what_is_to_run_alone_waits_until_nothing_runs_and_nothing_begins_beside_it() -> None:
    works, scheduler = Works(), Scheduler(lambda: 2, 8, 8)
    first = scheduler.submit("a", "one", works.of("a"))
    alone = scheduler.submit("b", "one", works.of("b"), alone=True)
    after = [scheduler.submit(name, "one", works.of(name)) for name in "cd"]
    await asyncio.sleep(0.01)
    assert works.begun == ["a"] and (scheduler.running, scheduler.queued) == (1, 3)
    assert alone.place[2] == 0
    works.gates["a"].set()
    await first.wait()
    await asyncio.sleep(0.01)
    assert works.begun == ["a", "b"] and scheduler.queued == 2
    works.gates["b"].set()
    await alone.wait()
    await asyncio.sleep(0.01)
    assert works.begun == ["a", "b", "c", "d"]
    for name, ticket in zip("cd", after, strict=True):
        works.gates[name].set()
        await ticket.wait()


@pytest.mark.parametrize("how", ["given back", "drained"])
async def test_what_waits_to_run_alone_can_be_stopped(how: str) -> None:
    works, scheduler = Works(), Scheduler(lambda: 2, 8, 8)
    scheduler.submit("a", "one", works.of("a"))
    alone = scheduler.submit("b", "one", works.of("b"), alone=True)
    scheduler.submit("c", "one", works.of("c"))
    await asyncio.sleep(0.01)
    if how == "given back":
        assert alone.give_back()
        await alone.ended()
        await asyncio.sleep(0.01)
        assert works.begun == ["a", "c"], "what waited behind it begins"
    await scheduler.drain(0.0)
    await alone.ended()
    assert (scheduler.running, scheduler.queued) == (0, 0) and "b" not in works.begun
