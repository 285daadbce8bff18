"""The order in which sequences wait, and prompts that wait for a prefix which another one computes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import QueueFull
from engine.scheduler import ScheduledSequence, SchedulerConfig, Status
from engine.scheduler.queue import WaitingQueue, build_rank
from tests.engine.scheduler.loop import Loop


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


# Of many prompts that begin alike, one is computed and the others find it cached.


COMMON = list(range(100))


def loop_with(least_shared: int, page_size: int = 4, window: int | None = None) -> Loop:
    config = SchedulerConfig(
        max_batched_tokens=64, prefill_beside_decodes=32, max_num_seqs=8, max_overtaken=9, least_shared=least_shared
    )
    return Loop(config, 200, page_size, window)


def test_the_common_prefix_is_computed_once() -> None:
    loop = loop_with(least_shared=16)
    sequences = [loop.add([*COMMON, 1000 + place, 0], max_new_tokens=3) for place in range(5)]
    assert loop.step() == {sequences[0].id: 64}
    assert {each.status for each in sequences[1:]} == {Status.WAITING}
    loop.step()
    assert set(loop.step()) == {each.id for each in sequences}, "as soon as it is there"
    assert [each.num_cached_prompt for each in sequences] == [0, 100, 100, 100, 100]
    loop.drain()
    assert loop.num_run == 100 + 5 * (2 + 3 - 1)


def test_each_joins_where_it_departs() -> None:
    """It does not wait for the end of the other prompt, only for what both have."""
    loop = loop_with(least_shared=16)
    long = loop.add(COMMON * 5)
    loop.step()
    early = loop.add([*COMMON[:70], 1000, 0])
    loop.step()
    assert early.num_cached_prompt == 64, "6 more tokens are less than least_shared"
    assert long.num_pending > 300


@pytest.mark.parametrize(
    ("prompt", "root"),
    [
        ([*COMMON[:15], 1000, *COMMON], b""),  # 15 are not enough to wait for
        ([*COMMON, 1000], b"other"),
        (COMMON[:16], b""),  # its last token is run in any case
    ],
)
def test_others_do_not_wait(prompt: list[int], root: bytes) -> None:
    loop = loop_with(least_shared=16)
    loop.add(COMMON)
    other = loop.add(prompt, root=root)
    assert other.id in loop.step()


def test_a_prefix_of_one_token_more_is_waited_for() -> None:
    loop = loop_with(least_shared=16)
    first = loop.add(COMMON)
    other = loop.add(COMMON[:17])
    assert loop.step() == {first.id: 64}
    loop.step()
    assert other.num_cached_prompt == 16


def test_who_departs_from_what_is_computed_does_not_wait() -> None:
    """They begin alike, but how it goes on is cached from another one."""
    loop = loop_with(least_shared=16)
    loop.add(COMMON)
    loop.drain()
    loop.add([*COMMON[:16], *range(1000, 1500)])
    other = loop.add([*COMMON, *range(2000, 2040)])
    assert other.id in loop.step()
    assert other.num_cached_prompt == 100


def test_nobody_waits_for_a_page_that_the_other_has_computed_in_part() -> None:
    """What both have ends within a page, which is not shared while the other writes to it."""
    loop = loop_with(least_shared=16, page_size=128)
    long = loop.add(COMMON * 5)
    other = loop.add([*COMMON[:70], 1000])
    assert loop.step() == {long.id: 64}
    assert other.id in loop.step()


def test_who_waits_goes_on_when_the_other_is_removed() -> None:
    loop = loop_with(least_shared=16)
    first, second = loop.add(COMMON), loop.add([*COMMON, 1])
    loop.step()
    loop.remove(first.id)
    assert loop.step() == {second.id: 37}
    assert second.num_cached_prompt == 64
    loop.drain()


def test_behind_a_window_too() -> None:
    loop = loop_with(least_shared=16, window=20)
    first, second = loop.add(COMMON), loop.add([*COMMON, 1])
    assert loop.step() == {first.id: 64}
    loop.step()
    assert loop.step()[second.id] <= 5
    loop.drain()
