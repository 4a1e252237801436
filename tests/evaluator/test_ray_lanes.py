"""Who minds the lanes of a cluster, with workers that die of everything that Ray has a name for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

ray = pytest.importorskip("ray")
exceptions = pytest.importorskip("ray.exceptions")

from kernelevo_evaluator.ray_executor import lanes as module  # noqa: E402 - needs ray


class Method:
    """A method of an actor: `remote` gives something to await."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    async def remote(self, *arguments: Any) -> Any:
        return await self._answer(*arguments)


class Worker:
    """A worker that starts, and then dies of `death` or lives."""

    def __init__(self, death: BaseException | None) -> None:
        self.closed = False
        self.killed = False
        self.host = Method(self._host)
        self.start = Method(self._start)
        self.alive = Method(self._alive)
        self.close = Method(self._close)
        self._death = death

    async def _host(self) -> str:
        return "host"

    async def _start(self) -> tuple[Any, int]:
        return SimpleNamespace(devices=(SimpleNamespace(id="gpu"),)), 2

    async def _alive(self, pause: float) -> Any:
        if self._death is not None:
            raise self._death
        await asyncio.sleep(min(pause, 0.01))
        return SimpleNamespace(healthy=True)

    async def _close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    "death",
    [
        exceptions.OutOfMemoryError("the node ran out of memory"),
        exceptions.NodeDiedError("the node died"),
        exceptions.RaySystemError("the system failed"),
        RuntimeError("something that nobody thought of"),
    ],
    ids=lambda death: type(death).__name__,
)
async def test_a_worker_that_dies_of_anything_is_ended_and_replaced(
    monkeypatch: pytest.MonkeyPatch, death: BaseException
) -> None:
    deaths: list[BaseException | None] = [death, None]
    workers: list[Worker] = []

    def make() -> Worker:
        workers.append(Worker(deaths.pop(0)))
        return workers[-1]

    monkeypatch.setattr(module, "_FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(
        module.ray, "remote", lambda _: SimpleNamespace(options=lambda **_: SimpleNamespace(remote=make))
    )
    monkeypatch.setattr(module.ray, "kill", lambda worker: setattr(worker, "killed", True))
    lanes = module.Lanes(1, {}, (), 5.0)
    lanes.open(lambda facts: "")
    try:
        async with asyncio.timeout(10):
            while len(workers) < 2 or not lanes.up:
                await asyncio.sleep(0.01)
        first, second = workers
        assert first.closed and first.killed, "what it may have held is ended"
        assert [lane.worker for lane in lanes.up] == [second]
        lane = (await lanes.take()).lane
        assert lane is not None and lane.worker is second
    finally:
        await lanes.close()
    assert second.closed and second.killed
