"""Which cores a worker of a cluster takes: those of its lane, and no other lane's."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from kernelevo_evaluator.lanes.gpu import Gpu, NoGpu
from kernelevo_evaluator.ray_executor import place

if TYPE_CHECKING:
    from collections.abc import Callable

USABLE = frozenset(range(16))


def gpu(number: int, cpus: frozenset[int]) -> Gpu:
    return Gpu(
        uuid=f"GPU-0000-{number}",
        name="H200",
        architecture="sm_90",
        minor=number,
        memory_bytes=1 << 37,
        driver="580",
        cpus=cpus,
    )


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[frozenset[int]]]:
    """The cores of lanes that see these devices, on a host where NVML shows these GPUs."""

    def of(gpus: list[Gpu], visible: list[str], *arguments: Any, **options: Any) -> list[frozenset[int]]:
        def found() -> tuple[Gpu, ...]:
            names = os.environ.get("CUDA_VISIBLE_DEVICES")
            shown = [one for one in gpus if names is None or names in (str(one.minor), one.uuid)]
            if not shown:
                raise NoGpu("NVML shows no GPU (or CUDA_VISIBLE_DEVICES hides them all)")
            return tuple(shown)

        monkeypatch.setattr(place, "find_gpus", found)
        shares = []
        for names in visible:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names)
            shares.append(place.cores_of_lane(len(visible), *arguments, **options))
            assert os.environ["CUDA_VISIBLE_DEVICES"] == names
        return shares

    return of


def test_gpus_of_one_host_have_cores_of_their_own_near_to_them(cores: Callable[..., list[frozenset[int]]]) -> None:
    near, far = frozenset(range(8)), frozenset(range(8, 16))
    # As Ray hides the others from each worker, by number or by name.
    shares = cores([gpu(0, near), gpu(1, near), gpu(2, far), gpu(3, far)], ["0", "GPU-0000-1", "2", "3"], USABLE)
    assert [sorted(share) for share in shares] == [[*range(4 * n, 4 * n + 4)] for n in range(4)]


def test_devices_in_name_only_share_the_cores_evenly(cores: Callable[..., list[frozenset[int]]]) -> None:
    shares = cores([gpu(0, USABLE)], ["0", "1", "2"], USABLE, gpu=False)
    assert frozenset().union(*shares) == USABLE and sum(map(len, shares)) == len(USABLE)
    # Fewer cores than lanes: each has all of them.
    assert cores([], ["0", "1", "2"], frozenset({5})) == [{5}] * 3


def test_what_a_person_says_counts(cores: Callable[..., list[frozenset[int]]]) -> None:
    given = (frozenset({0, 1}), frozenset({2, 3}))
    assert cores([gpu(0, USABLE), gpu(1, USABLE)], ["0", "1"], USABLE, given) == list(given)


def test_a_part_of_a_gpu_says_nothing_of_its_place(cores: Callable[..., list[frozenset[int]]]) -> None:
    assert cores([gpu(0, USABLE)], ["MIG-8f6c", "MIG-91aa"], USABLE) == [USABLE] * 2
