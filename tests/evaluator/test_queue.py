"""Fairness and bounds, without a clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelevo_evaluator.queue import FairQueue, Full


def test_takes_turns_between_clients_and_keeps_order_within_one() -> None:
    queue: FairQueue[str] = FairQueue(10, 10)
    for item in ("a1", "a2", "a3", "b1", "c1", "b2"):
        queue.put(item[0], item)
    assert [queue.take() for _ in range(7)] == ["a1", "b1", "c1", "a2", "b2", "a3", None]


def test_bounds() -> None:
    queue: FairQueue[int] = FairQueue(3, 2)
    queue.put("a", 1)
    queue.put("a", 2)
    with pytest.raises(Full) as caught:
        queue.put("a", 3)
    assert caught.value.of_client
    queue.put("b", 4)
    with pytest.raises(Full) as caught:
        queue.put("c", 5)
    assert not caught.value.of_client
    queue.force("c", 6)
    assert len(queue) == 4
    assert queue.remove(2)
    assert not queue.remove(2)
    assert [queue.take() for _ in range(3)] == [1, 4, 6]


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 3)), max_size=30))
def test_position_is_how_many_are_taken_before(steps: list[tuple[str, int]]) -> None:
    queue: FairQueue[int] = FairQueue(100, 100)
    for number, (client, action) in enumerate(steps):
        if action:
            queue.put(client, number)
        else:
            queue.take()
    told = {number: queue.position(number) for number in range(len(steps))}
    order = [queue.take() for _ in range(len(queue))]
    assert {number: place for number, place in told.items() if place is not None} == {
        number: place for place, number in enumerate(order)
    }
    assert len(queue) == 0
