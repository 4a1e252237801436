"""Whose doing the loss of a worker is: lanes and hosts that a call has to itself, and what a loss then says. No cluster."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("ray", reason="the Ray executor needs the ray extra")

from kernelevo_evaluator.executor import ExecutorFault
from kernelevo_evaluator.ray_executor import cluster, losses
from kernelevo_evaluator.ray_executor.cluster import Fate
from kernelevo_evaluator.ray_executor.lanes import Lane, Lanes, Scope
from kernelevo_evaluator.ray_executor.losses import Losses
from kernelevo_evaluator.settings import EvaluatorSettings

if TYPE_CHECKING:
    from collections.abc import Callable


class _Alive:
    async def remote(self, seconds: float) -> Any:
        return SimpleNamespace(healthy=True)


class Cluster:
    """Lanes without workers, two calls to each, and a cluster that says what it is told to of hosts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, hosts: str) -> None:
        self.changes = 0
        self.fates: dict[str, Fate] = {}
        self.lanes = Lanes(0, {}, (), 1.0, self._changed)
        for number, host in enumerate(hosts):
            self.bring(number, host)
        monkeypatch.setattr(cluster, "fate_of", lambda host: self.fates.get(host, Fate.THERE))
        monkeypatch.setattr(losses, "NEWS_S", 0.05)
        monkeypatch.setattr(losses, "_LOOK_S", 0.01)

    def _changed(self) -> None:
        self.changes += 1

    def bring(self, number: int, host: str) -> None:
        lane = Lane(number, SimpleNamespace(alive=_Alive()))
        facts: Any = SimpleNamespace(devices=(SimpleNamespace(id=f"{host}/{number}"),))
        lane.host, lane.facts, lane.room = host, facts, 2
        self.lanes._lanes[number] = lane

    def lose(self, number: int) -> Lane:
        lane = self.lanes._lanes[number]
        self.lanes.drop(lane)
        return lane

    async def waits(self, taking: asyncio.Task[Any]) -> None:
        await asyncio.sleep(0.02)
        assert not taking.done()


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Cluster]:
    return lambda hosts: Cluster(monkeypatch, hosts)


async def test_a_call_that_wants_a_lane_for_itself_waits_until_it_is_empty_and_nobody_joins_it(
    make: Callable[[str], Cluster],
) -> None:
    lanes = make("a").lanes
    first = await lanes.take()
    alone = asyncio.create_task(lanes.take(Scope.LANE))
    other = asyncio.create_task(lanes.take())
    await asyncio.sleep(0.02)
    assert not alone.done() and not other.done() and lanes.room == 1
    await lanes.give_back(first)
    stay = await alone
    await asyncio.sleep(0.02)
    assert not other.done() and not stay.shared and not first.shared
    await lanes.give_back(stay)
    shared = [await other, await lanes.take()]
    assert all(one.shared for one in shared) and lanes.room == 2


async def test_a_call_that_wants_a_host_for_itself_closes_all_of_its_lanes(make: Callable[[str], Cluster]) -> None:
    found = make("aab")
    lanes = found.lanes
    busy = [await lanes.take(hosts={"b"}), await lanes.take(hosts={"b"})]
    assert [one.lane.number for one in busy if one.lane is not None] == [0, 1]
    assert all(one.beside and not one.shared for one in busy)
    alone = asyncio.create_task(lanes.take(Scope.HOST, hosts={"b"}))
    await asyncio.sleep(0.02)
    assert not alone.done() and lanes.room == 3
    assert {(await lanes.take()).host for _ in range(2)} == {"b"}, "the other host serves on"
    await lanes.give_back(busy[0])
    await found.waits(alone)
    await lanes.give_back(busy[1])
    stay = await alone
    assert stay.host == "a" and not stay.beside and not stay.shared


async def test_who_waits_for_a_lane_that_is_lost_gets_another_and_who_gives_up_opens_it_again(
    make: Callable[[str], Cluster],
) -> None:
    found = make("ab")
    lanes = found.lanes
    busy = [await lanes.take(), await lanes.take()]
    alone = asyncio.create_task(lanes.take(Scope.LANE, devices={"b/1"}))
    await found.waits(alone)
    lost = found.lose(0)
    await lanes.give_back(next(one for one in busy if one.lane is lost))
    await found.waits(alone)
    await lanes.give_back(next(one for one in busy if one.lane is not lost))
    assert (await alone).device == "b/1", "to be avoided, but the only one"
    waiting = asyncio.create_task(lanes.take(Scope.LANE))
    await found.waits(waiting)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert lanes.room == 1 and found.changes


async def test_sharing_a_worker_with_what_takes_it_down_convicts_nobody(make: Callable[[str], Cluster]) -> None:
    found = make("aab")
    innocent, noted = await found.lanes.take(hosts={"b"}, devices={"a/1"}), Losses()
    guilty, its = await found.lanes.take(hosts={"b"}, devices={"a/1"}), Losses()
    assert innocent.lane is guilty.lane
    found.lose(0)
    for stay, one in ((innocent, noted), (guilty, its)):
        await one.note(stay, found.lanes)
        await found.lanes.give_back(stay)
        assert (one.count, one.laid_to_it, one.scope) == (1, 0, Scope.LANE)
    # From now on alone, and on another device; the host is not to blame.
    stay = await found.lanes.take(its.scope, its.devices, its.hosts)
    assert stay.device != "a/0" and not its.hosts
    assert stay.lane is not None
    found.lose(stay.lane.number)
    await its.note(stay, found.lanes)
    await found.lanes.give_back(stay)
    assert its.laid_to_it == 1 and not its.convicts
    found.bring(0, "a")
    stay = await found.lanes.take(its.scope, its.devices, its.hosts)
    assert stay.lane is not None
    found.lose(stay.lane.number)
    await its.note(stay, found.lanes)
    assert its.convicts and not noted.convicts


async def test_what_runs_beside_a_candidate_that_takes_the_host_down_is_not_convicted(
    make: Callable[[str], Cluster],
) -> None:
    found = make("aab")
    stays = [await found.lanes.take(hosts={"b"}), await found.lanes.take(hosts={"b"})]
    noted = [Losses(), Losses()]
    found.lose(0), found.lose(1)
    # Whether or not the cluster knows of the host's end by now.
    for stay, one in zip(stays, noted, strict=True):
        await one.note(stay, found.lanes)
        await found.lanes.give_back(stay)
        assert (one.laid_to_it, one.scope, one.hosts) == (0, Scope.HOST, {"a"})
        found.fates["a"] = Fate.LOST


async def test_what_we_end_ourselves_and_what_is_taken_away_count_against_nobody(
    make: Callable[[str], Cluster],
) -> None:
    found, noted = make("ab"), Losses()
    stay = await found.lanes.take(devices={"b/1"})
    assert stay.lane is not None
    found.lanes.drop(stay.lane, "another call did not stop")
    assert await noted.note(stay, found.lanes) == "another call did not stop"
    await found.lanes.give_back(stay)
    assert (noted.count, noted.laid_to_it, noted.scope, noted.devices) == (1, 0, Scope.SHARED, set())
    stay = await found.lanes.take()
    assert stay.lane is not None
    found.lose(stay.lane.number)
    found.fates["b"] = Fate.TAKEN_AWAY
    await noted.note(stay, found.lanes)
    assert (noted.count, noted.laid_to_it, noted.scope, noted.hosts) == (2, 0, Scope.SHARED, {"b"})
    assert not noted.exhausting
    noted.count = losses.MOST
    assert noted.exhausting and not noted.convicts


def test_gpus_are_counted_by_the_type_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def node(gpus: int, kind: str, alive: bool = True) -> dict[str, Any]:
        return {"NodeID": kind, "Alive": alive, "Resources": {"GPU": gpus, f"accelerator_type:{kind}": 1.0}}

    nodes = [node(8, "H200"), node(4, "A100"), node(8, "H200", alive=False), {"Alive": True, "Resources": {"CPU": 4}}]
    monkeypatch.setattr(cluster.ray, "nodes", lambda: nodes)
    assert (cluster.count_gpus(None), cluster.count_gpus("H200"), cluster.count_gpus("A100")) == (12, 8, 4)
    assert cluster.count_gpus("B200") == 0 and cluster.kinds_of_gpus() == ("A100", "H200")


@pytest.mark.parametrize("by_variable", [False, True], ids=["setting", "variable"])
def test_the_address_of_a_ray_client_is_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, by_variable: bool
) -> None:
    address = "ray://head:10001"
    if by_variable:
        monkeypatch.setenv("RAY_ADDRESS", address)
    settings = EvaluatorSettings(device="simulated", executor="ray", ray_address="" if by_variable else address)
    with pytest.raises(ExecutorFault, match=r"ray start --address HEAD:6379 --num-gpus 0"):
        cluster.join(settings)


def test_whatever_ray_says_of_a_cluster_that_cannot_be_joined_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_slow(**_: Any) -> None:
        raise Exception("The current node timed out during startup.")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(cluster.ray, "init", too_slow)
    with pytest.raises(ExecutorFault, match="no Ray cluster answers: The current node timed out"):
        cluster.join(EvaluatorSettings(device="simulated", executor="ray"))
