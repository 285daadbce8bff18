"""Too few pages: admission, overtaking and preemption; and every sequence ends."""

from __future__ import annotations

import pytest

from engine.errors import DoesNotFit
from engine.scheduler import ScheduledSequence, Status
from engine.scheduler.queue import RETRY_STEPS
from tests.engine.scheduler.loop import Loop, config


def test_what_can_never_fit_is_refused_at_once() -> None:
    loop = Loop(config(), num_pages=10, page_size=4)
    with pytest.raises(
        DoesNotFit, match=r"prompt's 30 tokens and up to 11 new ones need 11 pages of 4 tokens .* has 10"
    ):
        loop.add(30, max_new_tokens=11)
    assert not loop.scheduler.has_pending_work()
    loop.add(39, max_new_tokens=1)
    loop.drain()


def test_behind_a_window_longer_ones_fit() -> None:
    loop = Loop(config(max_batched_tokens=8), num_pages=10, page_size=4, window=9)
    loop.add(100, max_new_tokens=30)
    loop.drain()
    assert loop.num_run == 129, "nothing was run twice"


def test_admission_waits_for_pages_of_the_whole_prompt_and_one_for_each_running() -> None:
    loop = Loop(config(max_batched_tokens=16), num_pages=12, page_size=4)
    first = loop.add(3, max_new_tokens=2)
    blocked = loop.add(40)  # 10 pages and first's 1 leave 1, fewer than one for each
    loop.step()
    assert (first.status, blocked.status) == (Status.RUNNING, Status.WAITING)
    loop.step()
    assert first.status is Status.FINISHED
    loop.step()
    assert blocked.status is Status.RUNNING
    loop.drain()
    assert loop.scheduler.stats().num_preempted == 0

    loop = Loop(config(max_batched_tokens=16), num_pages=12, page_size=4)
    loop.add(3, max_new_tokens=2)
    just = loop.add(36)
    loop.step()
    assert just.status is Status.RUNNING


def test_pages_in_use_by_others_are_free_of_charge() -> None:
    loop = Loop(config(), num_pages=16, page_size=4)
    first = loop.add(40, max_new_tokens=4)
    loop.step()
    again = loop.add([*first.token_ids[:40], 1, 2], max_new_tokens=4)
    loop.step()
    assert again.num_cached_prompt == 40
    assert loop.num_held == 12, "ten shared, and one more for each"
    loop.drain()


def count_opens(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ids of sequences that are opened from here on, as far as it is known when it is looked at."""
    opened: list[int] = []
    plain_open = loop.pages.open

    def counted(sequence_id: int, token_ids: list[int], root: bytes) -> int:
        opened.append(sequence_id)
        return plain_open(sequence_id, token_ids, root)

    monkeypatch.setattr(loop.pages, "open", counted)
    return opened


def test_pages_that_are_only_cached_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening them takes them from what is available, so they do not make a sequence fit that would not."""
    loop = Loop(config(), num_pages=16, page_size=4)
    first = loop.add(32, max_new_tokens=4)
    loop.drain()
    loop.add(24, max_new_tokens=4)
    loop.step()
    opened = count_opens(loop, monkeypatch)
    again = loop.add([*first.token_ids[:32], 1, 2], max_new_tokens=4)
    for _ in range(3):
        assert again.id not in loop.step()
        assert again.status is Status.WAITING
    assert opened == [again.id], "looked at once, not in every step"
    assert loop.pages.stats().num_evicted == 0, "what was found cached stays so"
    loop.step()
    assert again.num_cached_prompt == 32


def test_what_others_compute_meanwhile_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt that shares a prefix fits when it has been computed, before any page is given back."""
    loop = Loop(config(), num_pages=16, page_size=4)
    first = loop.add(40, max_new_tokens=20)
    opened = count_opens(loop, monkeypatch)
    again = loop.add([*first.token_ids, 1, 2], max_new_tokens=2)
    loop.step_until(lambda: again.status is Status.RUNNING)
    assert loop.num_steps == RETRY_STEPS + 2
    assert opened == [first.id, again.id, again.id]
    assert again.num_cached_prompt == 40
    loop.drain()


def test_pages_that_are_given_back_are_noticed_at_once() -> None:
    loop = Loop(config(), num_pages=12, page_size=4)
    loop.add(4, max_new_tokens=30)
    short = loop.add(16, max_new_tokens=10)
    loop.step()
    blocked = loop.add(20)
    loop.step()
    loop.remove(short.id)
    assert blocked.id in loop.step()


def test_behind_a_window_a_long_cached_prefix_leaves_pages_for_the_rest() -> None:
    loop = Loop(config(max_batched_tokens=8), num_pages=30, page_size=4, window=9)
    first = loop.add(100, max_new_tokens=30)
    loop.drain()
    other = loop.add([*first.token_ids[:129], *range(30)])
    assert loop.step() == {other.id: 8}
    assert other.num_cached_prompt == 129
    loop.drain()


def test_a_small_one_overtakes_a_big_one_so_many_times_and_no_more() -> None:
    loop = Loop(config(max_overtaken=2), num_pages=12, page_size=4)
    loop.add(15, max_new_tokens=12)
    loop.step()
    big = loop.add(44)
    small = [loop.add(3, max_new_tokens=2) for _ in range(4)]
    loop.step()
    assert [each.status for each in small] == [Status.RUNNING] * 2 + [Status.WAITING] * 2
    assert big.num_overtaken == 2
    for _ in range(11):
        assert {each.status for each in [big, *small[2:]]} == {Status.WAITING}
        loop.step()
    assert big.status is Status.RUNNING, "when the one before it has ended"
    loop.drain()


def test_whoever_is_passed_over_counts_and_whoever_has_counted_enough_stops_it() -> None:
    loop = Loop(config(max_overtaken=1), num_pages=12, page_size=4)
    loop.add(15, max_new_tokens=12)
    loop.step()
    first, second = loop.add(40), loop.add(44)
    loop.add(3, max_new_tokens=2)
    loop.step()
    assert (first.num_overtaken, second.num_overtaken) == (1, 1)
    loop.remove(first.id)
    urgent, small = loop.add(40, priority=-1), loop.add(3, max_new_tokens=2)
    loop.step()
    loop.step()
    assert (urgent.num_overtaken, small.status) == (0, Status.WAITING), "second stands between them"
    loop.remove(second.id)
    loop.step()
    assert (urgent.num_overtaken, small.status) == (1, Status.RUNNING)
    loop.drain()


def test_nobody_is_overtaken_where_the_bound_is_0() -> None:
    loop = Loop(config(max_overtaken=0), num_pages=12, page_size=4)
    loop.add(15, max_new_tokens=12)
    loop.step()
    big, small = loop.add(44), loop.add(3, max_new_tokens=2)
    loop.step()
    assert (big.status, small.status) == (Status.WAITING, Status.WAITING)
    loop.drain()


def test_a_stream_of_small_ones_does_not_starve_a_big_one() -> None:
    loop = Loop(config(max_overtaken=3), num_pages=12, page_size=4)
    loop.add(7, max_new_tokens=8)
    loop.step()
    big = loop.add(40)
    for _ in range(20):  # each that is before it ends within 8 steps
        if big.status is Status.WAITING:
            loop.add(7, max_new_tokens=8)
        loop.step()
    assert big.num_overtaken == 3
    loop.drain()


def test_only_few_are_passed_over_in_one_step() -> None:
    loop = Loop(config(max_num_seqs=50), num_pages=12, page_size=4)
    loop.add(15, max_new_tokens=12)
    loop.step()
    for _ in range(8):
        loop.add(44)
    small = loop.add(3, max_new_tokens=2)
    loop.step()
    assert small.status is Status.WAITING


def preempted_pair(aging_s: float | None = None) -> tuple[Loop, ScheduledSequence, ScheduledSequence]:
    """Two that fit as long as neither is longer than 20 tokens."""
    loop = Loop(config(aging_s=aging_s), num_pages=10, page_size=4)
    first, second = loop.add(12, max_new_tokens=20), loop.add(12, max_new_tokens=20)
    loop.step()
    return loop, first, second


def test_the_last_to_arrive_is_preempted_and_keeps_its_output() -> None:
    loop, first, second = preempted_pair()
    for _ in range(8):
        second.draft = [9]
        loop.step(lambda _: 0)
    second.draft = [9]
    loop.step()
    assert first.status is Status.RUNNING
    assert second.status is Status.WAITING
    assert len(first.token_ids) == 21 + 1
    assert (second.num_computed, second.num_cached_prompt, second.draft) == (0, 0, [])
    output = second.token_ids[12:]
    assert len(output) == 9
    assert loop.scheduler.stats().num_preempted == 1
    loop.drain()
    assert second.token_ids[12:21] == output
    assert second.num_cached_prompt == 0, "it was run before, by itself"
    assert first.num_preempted == 0

    alone = Loop(config(), num_pages=10, page_size=4)
    alone.add(12, max_new_tokens=20)
    expected = alone.add(12, max_new_tokens=20)
    alone.remove(1)
    alone.drain()
    assert second.token_ids == expected.token_ids, "the same output as without preemption"


def test_the_least_urgent_is_preempted_first() -> None:
    loop = Loop(config(), num_pages=15, page_size=4)
    low = loop.add(12, max_new_tokens=20, priority=1)
    loop.step()
    high, middle = loop.add(12, max_new_tokens=20, priority=-1), loop.add(12, max_new_tokens=20)
    loop.step_until(lambda: loop.scheduler.stats().num_preempted == 1)
    assert [each.num_preempted for each in (low, high, middle)] == [1, 0, 0]
    loop.step_until(lambda: loop.scheduler.stats().num_preempted == 2)
    assert [each.num_preempted for each in (low, high, middle)] == [1, 0, 1]
    loop.drain()


def test_a_preempted_one_goes_before_all_that_came_later() -> None:
    loop, first, second = preempted_pair()
    loop.step_until(lambda: second.num_preempted > 0)
    later, urgent = loop.add(28), loop.add(28, priority=-1)
    started: list[ScheduledSequence] = []
    for _ in range(100):
        loop.step()
        started += [each for each in loop.running if each not in started]
    assert [each.id for each in started if each is not first] == [urgent.id, second.id, later.id]


def test_a_stream_that_is_last_itself_gives_way() -> None:
    """It needs a page when those before it do not."""
    loop = Loop(config(), num_pages=9, page_size=4)
    first, second = loop.add(13, max_new_tokens=10), loop.add(11, max_new_tokens=10)
    loop.step()
    loop.step_until(lambda: loop.pages.num_available == 0)
    loop.step_until(lambda: second.num_preempted > 0)
    assert first.num_preempted == 0
    assert (len(first.token_ids), len(second.token_ids)) == (20, 17), "the step had the first one only"
    loop.drain()


def test_drafts_preempt_nobody() -> None:
    loop = Loop(config(), num_pages=10, page_size=4)
    first, second = loop.add(12, max_new_tokens=24), loop.add(12, max_new_tokens=6)
    loop.step()
    first.draft = list(range(20))
    # 8 pages in use, 1 has to be left for each: both go on within their pages
    assert loop.step(lambda _: 0) == {first.id: 1 + 3, second.id: 1}
    assert loop.scheduler.stats().num_preempted == 0


def test_a_draft_takes_the_pages_that_nobody_needs() -> None:
    loop = Loop(config(), num_pages=13, page_size=4)
    first, second = loop.add(12, max_new_tokens=36), loop.add(12, max_new_tokens=6)
    loop.step()
    first.draft = list(range(30))
    assert loop.step() == {first.id: 1 + 3 + 12, second.id: 1}
    assert loop.pages.num_available == 2


def test_pages_of_a_rejected_draft_are_given_back_before_anybody_is_preempted() -> None:
    loop = Loop(config(), num_pages=14, page_size=4)
    first, second = loop.add(8, max_new_tokens=48), loop.add(8, max_new_tokens=48)
    loop.step()
    first.draft = list(range(40))
    loop.step(lambda _: 0)
    assert loop.pages.num_available == 2, "one for each"
    loop.step_until(lambda: len(second.token_ids) == 25)  # seven pages each
    assert loop.scheduler.stats().num_preempted == 0
    loop.step_until(lambda: loop.scheduler.stats().num_preempted == 1)


def test_pages_of_a_rejected_draft_are_given_back_where_somebody_waits_for_them() -> None:
    loop = Loop(config(), num_pages=12, page_size=4)
    first = loop.add(8, max_new_tokens=40)
    loop.step()
    first.draft = list(range(30))
    loop.step(lambda _: 0)
    assert loop.num_held == 10
    second = loop.add(24, max_new_tokens=4)
    loop.step()
    assert second.status is Status.RUNNING


def test_what_is_retained_outlives_the_need_of_others() -> None:
    loop = Loop(config(), num_pages=12, page_size=4)
    kept = loop.add(16, max_new_tokens=4, retain_s=60.0)
    loop.step_until(lambda: kept.status is Status.FINISHED)
    for _ in range(3):
        loop.add(20, max_new_tokens=4)
        loop.drain()
    again = loop.add(kept.token_ids, max_new_tokens=4)
    loop.step()
    assert again.num_cached_prompt == 19


def test_where_only_one_fits_all_finish_and_the_work_is_bounded() -> None:
    """Each takes all of the pool in the end, so whoever runs beside the first is preempted."""
    loop = Loop(config(), num_pages=10, page_size=4)
    sequences = [loop.add(4 + place, max_new_tokens=36 - place) for place in range(8)]
    loop.drain()
    assert [len(each.token_ids) for each in sequences] == [40] * 8
    assert sequences[0].num_preempted == 0
    assert loop.scheduler.stats().num_preempted == sum(each.num_preempted for each in sequences)
    # a preemption follows a page that one of smaller rank has taken, at most 10 for each of them
    assert all(each.num_preempted <= 10 * place for place, each in enumerate(sequences))
    assert loop.num_run <= 3 * 8 * 40, "far less than that bound: what was computed is cached for a while"


def test_none_is_preempted_where_all_fit() -> None:
    loop = Loop(config(), num_pages=80, page_size=4)
    sequences = [loop.add(4 + place, max_new_tokens=36 - place) for place in range(8)]
    loop.drain()
    assert loop.scheduler.stats().num_preempted == 0
    assert loop.num_run == sum(len(each.token_ids) - 1 for each in sequences)


def test_behind_a_window_a_prompt_takes_back_the_pages_that_it_goes_on_with() -> None:
    """It gives pages back as it goes on, and what a stream of larger rank took of them, it needs for its next chunk."""
    loop = Loop(config(max_batched_tokens=17), num_pages=20, page_size=2, window=16)
    long, stream = loop.add(200), loop.add(1, max_new_tokens=30)
    loop.step_until(lambda: stream.num_preempted > 0)
    assert len(stream.token_ids) == 1 + 8, "up to its fifth page"
    assert loop.step() == {long.id: 17}
    assert stream.num_preempted == 1, "it does not come in on pages that are needed in the same step"
    loop.step_until(lambda: stream.status is Status.RUNNING)
    loop.drain()
    assert (long.num_preempted, stream.num_preempted) == (0, 1)
