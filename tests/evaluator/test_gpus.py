"""GPUs and MIG instances as devices, found through an NVML that is made up."""

from __future__ import annotations

import pytest
from fake_nvml import FakeGpu, FakeInstance, FakeNvml

from kernelevo_evaluator.lanes.gpu import NoGpu, find_gpus, share_cpus


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """A plain GPU, one in two parts of which a third could be made, and one whose MIG mode is off."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    parts = [
        FakeInstance("MIG-aaaa-1", "NVIDIA H200 MIG 1g.18gb", (9, 0)),
        None,
        FakeInstance("MIG-bbbb-2", "NVIDIA H200 MIG 3g.71gb", (2, 0), memory=71 << 30),
    ]
    return FakeNvml(
        FakeGpu("GPU-0000", minor=1),
        FakeGpu("GPU-1111", minor=0, instances=parts),
        FakeGpu("GPU-2222", minor=2, instances=[None], mig=False),
    ).install(monkeypatch)


def test_instances_take_their_gpus_place(nvml: FakeNvml) -> None:
    whole, first, second, last = find_gpus()
    assert [gpu.uuid for gpu in (whole, first, second, last)] == ["GPU-0000", "MIG-aaaa-1", "MIG-bbbb-2", "GPU-2222"]
    assert (whole.instance, whole.parent, last.instance) == (None, "", None)
    assert (first.instance, first.parent, first.minor) == ((9, 0), "GPU-1111", 0)
    assert (second.instance, second.memory_bytes, second.name) == ((2, 0), 71 << 30, "NVIDIA H200 MIG 3g.71gb")
    assert first.architecture == whole.architecture == "sm_90"
    # A process that is told of it uses it, and it alone.
    assert first.environment["CUDA_VISIBLE_DEVICES"] == "MIG-aaaa-1"
    assert nvml.opened == 0


def test_each_instance_is_a_lane_with_cores_of_its_own(nvml: FakeNvml) -> None:
    shares = share_cpus(find_gpus(), frozenset(range(4)))
    assert [sorted(share) for share in shares] == [[0], [1], [2], [3]]


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        ("MIG-bbbb-2", ["MIG-bbbb-2"]),
        ("MIG-aaaa", ["MIG-aaaa-1"]),
        ("1", ["MIG-aaaa-1", "MIG-bbbb-2"]),
        ("GPU-1111", ["MIG-aaaa-1", "MIG-bbbb-2"]),
        ("0,MIG-bbbb-2", ["GPU-0000", "MIG-bbbb-2"]),
    ],
)
def test_what_is_visible_is_a_gpu_or_a_part_of_one(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, visible: str, found: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu.uuid for gpu in find_gpus()] == found


def test_a_gpu_in_parts_without_a_part_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    FakeNvml(FakeGpu("GPU-1111", instances=[None, None])).install(monkeypatch)
    with pytest.raises(NoGpu, match="MIG mode without an instance"):
        find_gpus()
