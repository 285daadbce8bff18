"""Who waits in front of whom."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import QueueFull
from engine.scheduler import ScheduledSequence
from engine.scheduler.queue import WaitingQueue, build_rank


def sequence(sequence_id: int, priority: int = 0, arrival: float = 0.0) -> ScheduledSequence:
    return ScheduledSequence(sequence_id, [1], 2, priority=priority, arrival=arrival)


def order(aging_s: float | None, *sequences: ScheduledSequence) -> list[int]:
    queue = WaitingQueue(len(sequences), build_rank(aging_s))
    for each in sequences:
        queue.add(each)
        queue.check_integrity()
    return [each.id for each in queue]


def test_priority_then_arrival_then_id() -> None:
    late, early, urgent, twin = sequence(1, 0, 2.0), sequence(2, 0, 1.0), sequence(3, -1, 9.0), sequence(4, 0, 1.0)
    assert order(None, late, twin, early, urgent) == [3, 2, 4, 1]


def test_each_aging_s_of_waiting_counts_as_one_level() -> None:
    low = sequence(1, priority=2, arrival=0.0)
    assert order(30.0, sequence(2, 0, 59.0), low) == [2, 1]
    assert order(30.0, sequence(2, 0, 61.0), low) == [1, 2]
    assert order(None, sequence(2, 0, 61.0), low) == [2, 1]


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 300)), max_size=8, unique=True), st.integers(0, 500))
def test_the_rank_is_that_of_priorities_lowered_by_waiting(requests: list[tuple[int, int]], later: int) -> None:
    """The slow way: at any moment, each second of waiting takes 1 / 16 off the priority."""
    waiting = [sequence(place, priority, float(arrival)) for place, (priority, arrival) in enumerate(requests)]
    now = 300 + later
    by_aged_priority = sorted(waiting, key=lambda each: (each.priority - (now - each.arrival) / 16, each.arrival))
    assert order(16.0, *waiting) == [each.id for each in by_aged_priority]


def test_a_full_queue_says_how_many_wait() -> None:
    queue = WaitingQueue(2, build_rank(None))
    queue.add(sequence(1))
    queue.add(sequence(2))
    with pytest.raises(QueueFull, match="2 requests wait already and at most 2 may"):
        queue.add(sequence(3))
    assert len(queue) == 2
    queue.put_back(sequence(0))
    assert [each.id for each in queue] == [0, 1, 2], "what was preempted has been taken in before"


def test_remove_finds_its_own_among_equals() -> None:
    queue = WaitingQueue(3, build_rank(None))
    first, second, third = (sequence(place) for place in range(3))
    for each in (first, second, third):
        queue.add(each)
    queue.remove(second)
    assert list(queue) == [first, third]
    with pytest.raises((AssertionError, IndexError)):
        queue.remove(second)
