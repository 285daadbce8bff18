"""What goes first when memory is short, and what can be reached afterwards."""

from __future__ import annotations

from engine.kv_cache import KVPages
from tests.engine.kv_cache.fake_pool import FakePool

PROMPT = list(range(100, 111))  # 11 tokens: with pages of 4, two whole ones and 3 tokens


def test_a_twin_takes_the_place_of_an_evicted_page() -> None:
    pool = FakePool(KVPages(6, 4))
    for sequence_id in (1, 2):
        pool.open(sequence_id, PROMPT)
    pool.run(1, PROMPT[:8])
    pool.run(2, PROMPT[:8])
    pool.close(1)
    pool.open(3, [7] * 16)
    assert pool.run(3, [7] * 16)  # needs the two pages of 1, which is all that was entered
    assert pool.pages.num_cached(PROMPT, b"root") == 0
    pool.close(2)
    assert pool.pages.num_cached(PROMPT, b"root") == 8
    pool.pages.check_integrity()


def test_least_recently_used_goes_first_and_tails_before_heads() -> None:
    pool = FakePool(KVPages(6, 4))
    old, new = [1] * 12, [2] * 12
    pool.serve(1, old)
    pool.serve(2, new)
    pool.open(3, [3] * 20)
    lengths = []
    for num_tokens in range(4, 24, 4):
        assert pool.pages.grow(3, num_tokens)
        lengths.append((pool.pages.num_cached([*old, 0], b"root"), pool.pages.num_cached([*new, 0], b"root")))
    assert lengths == [(8, 12), (4, 12), (0, 12), (0, 8), (0, 4)]


def test_a_shared_head_is_as_young_as_its_youngest_use() -> None:
    pool = FakePool(KVPages(5, 4))
    pool.serve(1, [1] * 8)
    pool.serve(2, [2] * 8)
    pool.serve(3, [1, 1, 1, 1, 9])  # uses the head of 1 again, and not its tail
    pool.open(4, [4] * 8)
    assert pool.pages.grow(4, 4)
    assert pool.pages.num_cached([1] * 9, b"root") == 4
    assert pool.pages.grow(4, 12)
    assert pool.pages.num_cached([2] * 9, b"root") == 0
    assert pool.pages.num_cached([1] * 9, b"root") == 4


def test_to_be_copied_from_is_a_use() -> None:
    pool = FakePool(KVPages(4, 4))
    pool.serve(1, [1, 1, 1])
    pool.serve(2, [2, 2, 2])
    pool.serve(3, [1, 1, 3])
    pool.open(4, [4] * 8)
    assert pool.pages.grow(4, 8)
    assert pool.pages.num_cached([1, 1, 1, 0], b"root") == 3
    assert pool.pages.num_cached([2, 2, 2, 0], b"root") == 0


def test_what_is_retained_goes_last_until_its_time_is_over() -> None:
    now = [0.0]
    pool = FakePool(KVPages(4, 4, clock=lambda: now[0]))

    def left_after_two_more_pages() -> tuple[int, int]:
        pool.open(3, [3] * 8)
        assert pool.pages.grow(3, 8)
        left = pool.pages.num_cached([1] * 9, b"root"), pool.pages.num_cached([2] * 9, b"root")
        pool.close(3)
        return left

    pool.serve(1, [1] * 8, retain_s=10.0)
    pool.serve(2, [2] * 8)
    assert left_after_two_more_pages() == (8, 0)
    pool.serve(2, [2] * 8)
    now[0] = 10.0
    assert left_after_two_more_pages() == (0, 8)


def test_of_the_retained_the_one_that_runs_out_first_goes_first() -> None:
    pool = FakePool(KVPages(4, 4, clock=lambda: 0.0))
    pool.serve(1, [1] * 8, retain_s=10.0)
    pool.serve(2, [2] * 8, retain_s=5.0)
    pool.open(3, [3] * 16)
    assert pool.pages.grow(3, 8)
    assert pool.pages.num_cached([1] * 9, b"root") == 8
    assert pool.pages.num_cached([2] * 9, b"root") == 0
    assert pool.pages.grow(3, 16)  # a hint, not a promise
    assert pool.pages.num_cached([1] * 9, b"root") == 0


def test_of_the_retained_too_tails_go_before_heads() -> None:
    pool = FakePool(KVPages(3, 4, clock=lambda: 0.0))
    pool.serve(1, [1] * 12, retain_s=10.0)
    pool.open(2, [2] * 12)
    lengths = []
    for num_tokens in (4, 8):
        assert pool.pages.grow(2, num_tokens)
        lengths.append(pool.pages.num_cached([1] * 13, b"root"))
    assert lengths == [8, 4]


def test_retention_of_a_tail_retains_its_head() -> None:
    pool = FakePool(KVPages(4, 4, clock=lambda: 0.0))
    pool.serve(1, [1] * 8, retain_s=10.0)
    pool.serve(2, [1] * 4)  # later, and without retention
    pool.serve(3, [3] * 8)
    pool.open(4, [4] * 8)
    assert pool.pages.grow(4, 8)
    assert pool.pages.num_cached([1] * 9, b"root") == 8


def test_without_a_window_nothing_is_reached_through_an_evicted_head() -> None:
    pool = FakePool(KVPages(4, 4))
    for sequence_id in (1, 2):
        pool.open(sequence_id, PROMPT)
    for sequence_id in (1, 2):
        pool.run(sequence_id, PROMPT[:4])
    pool.run(2, PROMPT[4:8])  # behind the head that 1 entered; its own is not entered
    pool.pages.check_integrity()
    pool.close(1)
    pool.open(3, [7] * 8)
    assert pool.run(3, [7] * 8)
    assert pool.pages.stats().num_evicted == 1
    assert pool.pages.num_cached(PROMPT, b"root") == 0
    pool.check_all()
    pool.close(3)
    pool.open(4, PROMPT)
    assert pool.run(4, PROMPT[:4])  # computed anew: what follows is found again
    assert pool.pages.num_cached(PROMPT, b"root") == 8
    pool.pages.check_integrity()
