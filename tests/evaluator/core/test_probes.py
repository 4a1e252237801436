"""What the clock waits for on a device: bytes of the outputs at places that nobody can foresee."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernelevo_evaluator.messages.layout import Layout, TensorLeaf, TensorSpec, TupleNode
from kernelevo_evaluator.referee.buffers import POISON
from kernelevo_evaluator.referee.probes import PROBES, Probes

CALLS, FLOATS, BYTES = 50, 64, 37
_SLOT = 512
"""Bytes from one output to the next in the arena."""


@pytest.fixture
def arena() -> torch.Tensor:
    return torch.full((2 * CALLS * _SLOT,), POISON, dtype=torch.uint8)


@pytest.fixture
def probes(arena: torch.Tensor) -> Probes:
    specs = (
        TensorSpec(dtype="float32", shape=(FLOATS,), stride=(1,), offset=0, nbytes=4 * FLOATS),
        TensorSpec(dtype="uint8", shape=(BYTES,), stride=(1,), offset=4 * FLOATS, nbytes=BYTES),
    )
    rings: Any = SimpleNamespace(
        arena=SimpleNamespace(bytes=arena),
        outputs=SimpleNamespace(
            layout=Layout(tree=TupleNode((TensorLeaf(0), TensorLeaf(1))), tensors=specs, nbytes=4096)
        ),
    )
    return Probes(rings)


def places() -> tuple[int, ...]:
    return tuple(_SLOT * index for index in range(2 * CALLS))


def finish(arena: torch.Tensor, calls: range) -> None:
    for call in calls:
        for tensor, nbytes in ((0, 4 * FLOATS), (1, BYTES)):
            begin = places()[2 * call + tensor]
            arena[begin : begin + nbytes] = (call + tensor) % 200


def test_what_is_done_stays_as_it_was(probes: Probes, arena: torch.Tensor):
    probes.choose(CALLS)
    finish(arena, range(CALLS))
    probes.aim(places())
    probes.read()
    assert probes.changed() == 0


def test_one_late_call_of_fifty_is_seen(probes: Probes, arena: torch.Tensor):
    """Of 1,024 bytes none lies in a fiftieth of the outputs once in 10^9 blocks."""
    probes.choose(CALLS)
    finish(arena, range(CALLS - 1))
    probes.aim(places())
    probes.read()
    finish(arena, range(CALLS - 1, CALLS))
    assert 0 < probes.changed() < PROBES / 10


def test_each_output_is_looked_at_by_how_large_it_is(probes: Probes, arena: torch.Tensor):
    probes.choose(CALLS)
    probes.aim(places())
    probes.read()
    arena[:] = 1
    assert probes.changed() == PROBES, "every byte that was looked at lay in the arena"
    small = 0
    for _ in range(20):
        arena[:] = POISON
        probes.choose(CALLS)
        probes.aim(places())
        probes.read()
        for begin in places()[1::2]:
            arena[begin : begin + BYTES] = 1
        small += probes.changed()
    assert small / (20 * PROBES) == pytest.approx(BYTES / (BYTES + 4 * FLOATS), rel=0.1)


def test_gaps_between_outputs_are_not_looked_at(probes: Probes, arena: torch.Tensor):
    probes.choose(CALLS)
    finish(arena, range(CALLS))
    probes.aim(places())
    probes.read()
    for begin in places()[::2]:
        arena[begin + 4 * FLOATS : begin + _SLOT] = 7
    for begin in places()[1::2]:
        arena[begin + BYTES : begin + _SLOT] = 7
    assert probes.changed() == 0


def test_a_short_block_is_looked_at_within_itself(probes: Probes, arena: torch.Tensor):
    probes.choose(3)
    probes.aim(places()[:6])
    probes.read()
    arena[places()[6] :] = 1
    assert probes.changed() == 0
    probes.choose(3)
    probes.aim(places()[:6])
    probes.read()
    finish(arena, range(3))
    assert probes.changed() == PROBES


@pytest.mark.parametrize("claimed", [(), (0,), ((1 << 48) - 1,) * 100])
def test_a_false_claim_reads_nothing_elsewhere(probes: Probes, arena: torch.Tensor, claimed: tuple[int, ...]):
    """Where outputs are compared such a claim is found missing; here it must do no harm."""
    probes.choose(CALLS)
    probes.aim(claimed)
    probes.read()
    assert probes.changed() == 0


def test_what_was_not_read_did_not_change(probes: Probes, arena: torch.Tensor):
    assert probes.changed() == 0
    probes.choose(CALLS)
    probes.aim(places())
    probes.read()
    arena[:] = 1
    assert probes.changed() == PROBES
    assert probes.changed() == 0, "it is told once"
