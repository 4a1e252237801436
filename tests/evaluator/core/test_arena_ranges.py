"""What of an arena is made useless before the next block, and how much of one torch's allocator takes."""

from __future__ import annotations

import torch

from kernelevo_evaluator.referee.buffers import POISON, poison
from kernelevo_evaluator.referee.rings import _stretches, allocated_bytes

MEBIBYTE = 1 << 20


def covered(places: tuple[int, ...], sizes: tuple[int, ...]) -> set[int]:
    return {
        byte
        for begin, length, count, distance in _stretches(places, sizes, 1 << 20)
        for number in range(count)
        for byte in range(begin + number * distance, begin + number * distance + length)
    }


def test_every_output_is_covered_and_nothing_but_small_gaps_beside():
    places, sizes = (0, 4096, 1000, 12288, 20480, 9000), (300, 900)
    due = {byte for index, place in enumerate(places) for byte in range(place, place + sizes[index % 2])}
    found = covered(places, sizes)
    assert due <= found
    # What lies between 0-300 and 1000-1300 is more than the allocator's rounding.
    assert not found & set(range(300, 1000)) and not found & set(range(1300, 4096))


def test_regular_places_are_one_stretch():
    segment, block = 20 * MEBIBYTE, 8 * MEBIBYTE
    places = tuple(number // 2 * segment + number % 2 * block for number in range(400))
    assert _stretches(places, (block,), 400 * segment) == [(0, 2 * block, 200, segment)]


def test_outputs_of_the_same_memory_count_once():
    assert _stretches((512, 512), (100,), 4096) == [(512, 100, 1, 100)]


def test_places_outside_of_the_arena_are_nothing():
    assert _stretches((0, 4000, 1 << 40), (100,), 4096) == [(0, 100, 1, 100)]


def test_poison_of_words_and_of_odd_bytes():
    for memory in (torch.zeros(64, dtype=torch.uint8), torch.zeros(61, dtype=torch.uint8)):
        poison(memory)
        assert bool((memory == POISON).all())
    grid = torch.zeros(96, dtype=torch.uint8)
    poison(grid.as_strided((3, 8), (32, 1), 16))
    assert int((grid == POISON).sum()) == 24 and bool((grid[16:24] == POISON).all()) and not bool(grid[24:48].any())


def test_what_the_allocator_takes():
    assert allocated_bytes(100, 10) == 2 * MEBIBYTE
    assert allocated_bytes(MEBIBYTE, 3) == 4 * MEBIBYTE
    # Two of 8 MiB to a segment of 20.
    assert allocated_bytes(8 * MEBIBYTE, 3) == 40 * MEBIBYTE
    assert allocated_bytes(16 * MEBIBYTE + 1, 2) == 2 * 18 * MEBIBYTE
