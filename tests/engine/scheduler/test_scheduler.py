"""What a step holds: streams first, then prompts by equal shares, then drafts."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import QueueFull
from engine.scheduler import ScheduledSequence, Scheduler, SchedulerConfig, Status
from engine.scheduler.scheduler import split_evenly
from tests.engine.scheduler.loop import Loop, config


def test_one_sequence_from_prompt_to_end() -> None:
    loop = Loop(config(), num_pages=40)
    sequence = loop.add(100, max_new_tokens=3)
    assert sequence.status is Status.WAITING
    assert [loop.step()[sequence.id] for _ in range(4)] == [64, 36, 1, 1]
    assert sequence.status is Status.FINISHED
    assert len(sequence.token_ids) == 103
    assert not loop.scheduler.has_pending_work()


def test_a_long_prompt_never_holds_up_the_streams() -> None:
    """The bound of the docstring: every step has all streams, and at most so many prompt tokens."""
    limits = SchedulerConfig(max_batched_tokens=512, prefill_beside_decodes=128, max_num_seqs=8)
    loop = Loop(limits, num_pages=1200, page_size=16)
    streams = [loop.add(3, max_new_tokens=1000).id for _ in range(5)]
    loop.step()
    long = loop.add(16_384)
    for num_left in range(16_384, 0, -128):
        planned = loop.scheduler.schedule()
        assert {planned[stream] for stream in streams} == {1}
        assert planned[long.id] == 128
        assert sum(planned.values()) == 5 + 128
        loop.pages.take_copies()
        for stream in streams:
            loop.scheduler.advance(stream, 1, [7])
        loop.scheduler.advance(long.id, 128, [8] if num_left == 128 else [])
    assert long.num_pending == 1


def test_without_streams_a_prompt_has_the_whole_step() -> None:
    loop = Loop(config(), num_pages=100)
    long = loop.add(100)
    assert loop.step() == {long.id: 64}
    stream = loop.add(1)
    assert loop.step() == {stream.id: 1, long.id: 16}, "one that needs but one token is a stream from its first step"


def test_prompts_share_a_step_equally() -> None:
    loop = Loop(config(), num_pages=200)
    first, short, last = loop.add(100), loop.add(5), loop.add(100)
    assert loop.step() == {first.id: 30, short.id: 5, last.id: 29}
    assert loop.step() == {short.id: 1, first.id: 8, last.id: 8}


def test_a_short_prompt_is_through_in_bounded_steps_behind_long_ones() -> None:
    loop = Loop(config(), num_pages=1000)
    loop.add(1, max_new_tokens=500)
    for _ in range(3):
        loop.add(900)
    loop.step()
    short = loop.add(20)
    for _ in range(-(-20 // (16 // 4))):
        assert short.num_pending > 1
        loop.step()
    assert len(short.token_ids) == 21


def test_drafts_share_what_is_left_and_are_clipped() -> None:
    loop = Loop(config(max_batched_tokens=30), num_pages=100)
    first, second, third = (loop.add(5, max_new_tokens=100) for _ in range(3))
    loop.step()
    first.draft, second.draft, third.draft = list(range(3)), list(range(40)), list(range(40))
    assert loop.step() == {first.id: 1 + 3, second.id: 1 + 12, third.id: 1 + 12}


def test_a_draft_exceeds_the_step_of_one_that_is_alone() -> None:
    loop = Loop(config(max_batched_tokens=20, max_drafted=50), num_pages=100)
    sequence = loop.add(30, max_new_tokens=200, draft=list(range(80)))
    assert loop.step() == {sequence.id: 20}
    assert loop.step() == {sequence.id: 10 + 50}, "beside the last chunk of its prompt as well"
    sequence.draft = list(range(80))
    assert loop.step() == {sequence.id: 1 + 50}


@pytest.mark.parametrize("second_runs", [True, False])
def test_a_draft_keeps_to_the_step_while_anybody_runs_or_waits(second_runs: bool) -> None:
    loop = Loop(config(max_batched_tokens=20, max_drafted=50, max_num_seqs=1 + second_runs), num_pages=100)
    first = loop.add(5, max_new_tokens=200)
    loop.step()
    second = loop.add(5, max_new_tokens=100)
    first.draft = list(range(80))
    assert loop.step() == ({first.id: 1 + 14, second.id: 5} if second_runs else {first.id: 20})


def test_lengths_are_as_they_are_chosen_for_what_is_scheduled() -> None:
    loop = Loop(config(max_batched_tokens=30), num_pages=100)
    asked: list[tuple[list[int], int, int]] = []

    def chosen(sequences: list[ScheduledSequence], num_scheduled: int, num_left: int) -> list[int]:
        asked.append(([each.id for each in sequences], num_scheduled, num_left))
        return [2 * place for place in range(len(sequences))]

    loop.scheduler = Scheduler(loop.config, loop.pages, lambda: 0.0, chosen)
    streams = [loop.add(5, max_new_tokens=100) for _ in range(3)]
    loop.step()
    for each in streams[:2]:
        each.draft = list(range(40))
    prompt = loop.add(10, max_new_tokens=20, draft=list(range(9)))
    assert loop.step() == {streams[0].id: 1, streams[1].id: 1 + 2, streams[2].id: 1, prompt.id: 10 + 4}
    assert asked[-1] == ([streams[0].id, streams[1].id, prompt.id], 13, 17)


def test_drafts_come_behind_prompts() -> None:
    loop = Loop(config(max_batched_tokens=20), num_pages=100)
    stream = loop.add(5, max_new_tokens=100)
    loop.step()
    long = loop.add(100)
    stream.draft = list(range(40))
    assert loop.step() == {stream.id: 1 + 3, long.id: 16}


def test_a_draft_rides_on_the_last_chunk_of_the_prompt_only() -> None:
    loop = Loop(config(), num_pages=100)
    sequence = loop.add(100, max_new_tokens=100, draft=[1, 2, 3, 4])
    assert loop.step() == {sequence.id: 64}
    assert sequence.draft == [1, 2, 3, 4], "it still says what follows"
    assert loop.step() == {sequence.id: 36 + 4}
    assert sequence.token_ids[100:104] == [1, 2, 3, 4]
    assert len(sequence.token_ids) == 105
    assert sequence.draft == []


def test_a_draft_leaves_room_for_the_free_token() -> None:
    loop = Loop(config(), num_pages=100)
    sequence = loop.add(4, max_new_tokens=4, draft=[5, 6, 7, 8])
    assert loop.step() == {sequence.id: 4 + 3}
    assert sequence.token_ids[4:7] == [5, 6, 7]
    assert sequence.status is Status.FINISHED


@pytest.mark.parametrize("num_accepted", [0, 1, 3])
def test_rejected_draft_tokens_leave_no_trace(num_accepted: int) -> None:
    loop = Loop(config(), num_pages=100)
    sequence = loop.add(5, max_new_tokens=40)
    loop.step()
    sequence.draft = [1, 2, 3]
    loop.step(lambda _: num_accepted)
    assert len(sequence.token_ids) == 5 + 1 + num_accepted + 1
    assert sequence.token_ids[6:-1] == [1, 2, 3][:num_accepted]
    assert sequence.num_pending == 1
    assert sequence.draft == []
    loop.drain()  # Loop compares the KV of every token


def test_advance_refuses_what_was_not_run() -> None:
    loop = Loop(config(), num_pages=100)
    sequence = loop.add(5, max_new_tokens=40, draft=[1, 2])
    loop.scheduler.schedule()
    with pytest.raises(AssertionError, match="8 committed of 7"):
        loop.scheduler.advance(sequence.id, 8, [1, 2, 3])
    loop.scheduler.schedule()
    with pytest.raises(AssertionError, match="what is not output"):
        loop.scheduler.advance(sequence.id, 7, [1, 9, 3])
    loop.scheduler.schedule()
    with pytest.raises(AssertionError, match="no token is left"):
        loop.scheduler.advance(sequence.id, 5, [])


def test_a_step_is_taken_in_once() -> None:
    loop = Loop(config(), num_pages=100)
    sequence = loop.add(5)
    loop.scheduler.schedule()
    loop.scheduler.advance(sequence.id, 5, [1])
    with pytest.raises(KeyError):
        loop.scheduler.advance(sequence.id, 1, [2])


def test_no_more_than_max_num_seqs_run() -> None:
    loop = Loop(config(max_num_seqs=2), num_pages=100)
    first, second, third = (loop.add(3, max_new_tokens=5) for _ in range(3))
    assert set(loop.step()) == {first.id, second.id}
    loop.remove(first.id)
    assert set(loop.step()) == {second.id, third.id}


def test_the_queue_is_bounded() -> None:
    loop = Loop(config(max_num_seqs=1, max_waiting=2), num_pages=100)
    loop.add(3)
    loop.add(3)
    with pytest.raises(QueueFull, match="2 requests wait already"):
        loop.add(3)
    loop.step()
    loop.add(3)
    assert (loop.scheduler.stats().num_waiting, loop.scheduler.stats().num_running) == (2, 1)
    loop.drain()


def test_removed_in_every_state_it_holds_nothing() -> None:
    loop = Loop(config(max_num_seqs=2), num_pages=40)
    prefilling, decoding, waiting = loop.add(100), loop.add(2, max_new_tokens=50), loop.add(9)
    loop.step()
    assert (prefilling.num_pending > 1, decoding.num_pending, waiting.status) == (True, 1, Status.WAITING)
    for sequence in (waiting, prefilling, decoding):
        loop.remove(sequence.id)
        loop.check_integrity()
        assert sequence.status is Status.FINISHED
    assert loop.num_held == 0
    with pytest.raises(KeyError):
        loop.scheduler.remove(waiting.id)
    assert not loop.scheduler.has_pending_work()


def test_removed_between_schedule_and_advance() -> None:
    loop = Loop(config(), num_pages=40)
    first, second = loop.add(5), loop.add(5)
    planned = loop.plan()
    assert set(planned) == {first.id, second.id}
    loop.remove(first.id)
    loop.run(planned)
    loop.drain()
    assert second.status is Status.FINISHED


def test_deadlines_of_waiting_and_running() -> None:
    loop = Loop(config(max_num_seqs=1), num_pages=100)
    running, patient, waiting = loop.add(3, deadline=2.0), loop.add(3), loop.add(3, deadline=1.0)
    loop.step()
    assert loop.scheduler.find_expired() == []
    loop.now = 1.0
    assert loop.scheduler.find_expired() == [waiting.id]
    loop.now = 2.5
    assert loop.scheduler.find_expired() == [running.id, waiting.id]
    for sequence_id in loop.scheduler.find_expired():
        loop.remove(sequence_id)
    assert loop.scheduler.find_expired() == []
    loop.drain()
    assert patient.status is Status.FINISHED


def test_a_finished_sequence_can_be_gone_on_from() -> None:
    loop = Loop(config(), num_pages=40)
    first = loop.add(50, max_new_tokens=5)
    loop.drain()
    again = loop.add([*first.token_ids[:54], 1, 2, 3])
    assert loop.step() == {again.id: 3}
    assert again.num_cached_prompt == 54, "all but the last token has KV, to the token"


def test_equal_calls_give_equal_schedules() -> None:
    schedules = []
    for _ in range(2):
        loop = Loop(config(aging_s=1.0), num_pages=12)
        for place in range(6):
            loop.add(5 + 3 * place, max_new_tokens=9, priority=place % 3, draft=[1] * place)
            loop.now += 0.5
        taken = []
        while loop.scheduler.has_pending_work():
            taken.append(list(loop.step().items()))
        schedules.append(taken)
    assert schedules[0] == schedules[1]


def test_torch_is_not_needed() -> None:
    code = "import sys, engine.scheduler; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout.strip() == b"False"


# Equal shares of a number of tokens.


@pytest.mark.parametrize(
    ("wanted", "total", "expected"),
    [
        ([], 7, []),
        ([3, 4], 7, [3, 4]),
        ([3, 4], 0, [0, 0]),
        ([5, 100, 100], 65, [5, 30, 30]),
        ([100, 5, 100], 66, [31, 5, 30]),
        ([100, 100], 65, [33, 32]),
        ([9, 9, 9], 2, [2, 0, 0]),
        ([1, 9, 9], 5, [1, 2, 2]),
    ],
)
def test_examples(wanted: list[int], total: int, expected: list[int]) -> None:
    assert split_evenly(wanted, total) == expected


@given(st.lists(st.integers(0, 40), max_size=8), st.integers(0, 120))
def test_shares_are_those_of_raising_the_level_step_by_step(wanted: list[int], total: int) -> None:
    level = 0
    while level < max(wanted, default=0) and sum(min(want, level + 1) for want in wanted) <= total:
        level += 1
    expected = [min(want, level) for want in wanted]
    for place, want in enumerate(wanted):
        expected[place] += min(want - expected[place], total - sum(expected))
    assert split_evenly(wanted, total) == expected
    assert sum(expected) == min(total, sum(wanted))


# Limits that make no sense are refused with what to do.


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"max_batched_tokens": 0}, "max_batched_tokens is 0; it must be at least 1"),
        ({"prefill_beside_decodes": 0}, "prefill_beside_decodes is 0"),
        ({"prefill_in_idle_time": 0}, "prefill_in_idle_time is 0"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0"),
        ({"max_waiting": 0}, "max_waiting is 0"),
        ({"least_shared": 0}, "least_shared is 0"),
        ({"max_drafted": -1}, "max_drafted is -1"),
        ({"max_overtaken": -1}, "max_overtaken is -1"),
        ({"max_num_seqs": 9, "max_batched_tokens": 8}, "raise the second or lower the first"),
        ({"aging_s": 0.0}, "aging_s is 0.0"),
        ({"aging_s": float("nan")}, "aging_s is nan"),
        ({"aging_s": float("inf")}, "aging_s is inf; .* None for no aging"),
    ],
)
def test_refusals(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        SchedulerConfig(**fields)


def test_what_is_just_allowed() -> None:
    assert SchedulerConfig(1, 1, 1, 1, 0, None).max_num_seqs == 1
    assert SchedulerConfig(max_num_seqs=8, max_batched_tokens=8, aging_s=1e9).aging_s == 1e9
