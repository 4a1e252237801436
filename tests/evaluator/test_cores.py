"""How a lane's cores are shared out."""

from __future__ import annotations

import pytest

from kernelevo_evaluator.lanes.cores import Cores, thread_siblings


def test_a_lane_of_the_processor_shares_all_its_cores():
    cores = Cores.of(frozenset(range(16)), gpu=False)
    assert cores.timed is None
    assert cores.referee == cores.background == cores.all
    assert not cores.background_apart


def test_few_cores_are_shared_on_a_gpu_too():
    cores = Cores.of(frozenset({4, 5, 6}), gpu=True)
    assert (cores.timed, cores.background_apart) == (None, False)


@pytest.mark.parametrize("count", [4, 5])
def test_the_timed_core_is_kept_apart(count: int):
    cores = Cores.of(frozenset(range(count)), gpu=True)
    assert cores.timed == count - 1
    assert cores.timed not in cores.referee | cores.background
    assert not cores.background_apart


@pytest.mark.parametrize("count", [6, 16, 96])
def test_background_work_has_cores_of_its_own(count: int):
    cores = Cores.of(frozenset(range(0, 2 * count, 2)), gpu=True, siblings=lambda core: frozenset({core}))
    assert cores.background_apart
    parts = [{cores.timed}, cores.referee, cores.background]
    assert sum(map(len, parts)) == len(cores.all)
    assert frozenset().union(*parts) == cores.all


def test_nothing_runs_beside_the_timed_core():
    cores = Cores.of(frozenset(range(16)), gpu=True, siblings=lambda core: frozenset({core, core ^ 1}))
    assert cores.timed == 15
    assert 14 not in cores.referee | cores.background
    assert len(cores.referee) == 2 and cores.background_apart
    few = Cores.of(frozenset(range(8)), gpu=True, siblings=lambda core: frozenset({core, core ^ 1}))
    assert 6 in few.referee, "of few cores none is left idle"


def test_this_machines_cores_have_siblings():
    assert 0 in thread_siblings(0)
    assert thread_siblings(10_000_000) == frozenset({10_000_000})
