"""With a sliding window pages are given back, and only what the next token sees is needed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.kv_cache import NO_PAGE, KVPages
from tests.engine.kv_cache.fake_pool import FakePool

PROMPT = list(range(100, 111))  # 11 tokens: with pages of 4, two whole ones and 3 tokens


def test_behind_the_window_pages_are_given_back_and_stay_cached() -> None:
    pool = FakePool(KVPages(16, 4, window=5))
    prompt = list(range(16))
    pool.open(1, prompt)
    held = []
    for token_id in prompt:
        pool.run(1, [token_id])
        held.append([page != NO_PAGE for page in pool.pages.page_table(1)].count(True))
    assert pool.pages.page_table(1)[:3] == [NO_PAGE] * 3  # token 16 sees 12 to 16
    assert max(held) == 2 == pool.pages.max_pages(16, 1)
    assert pool.pages.stats().num_cached == 3
    assert pool.open(2, [*prompt[:6], 7]) == 6
    pool.check_all()


def test_with_a_window_only_what_the_next_token_sees_must_be_cached() -> None:
    pool = FakePool(KVPages(5, 4, window=5))
    prompt = list(range(16))
    pool.open(1, prompt)
    for token_id in prompt:
        pool.run(1, [token_id])
    pool.open(2, [7] * 16)
    assert pool.pages.grow(2, 16)  # one page is free, and the three behind the window of 1 go
    pool.close(1)
    assert pool.pages.num_cached([*prompt[:12], 99], b"root") == 0
    assert pool.pages.num_cached([*prompt, 99], b"root") == 16
    pool.close(2)
    assert pool.open(3, [*prompt, 99]) == 16
    assert list(pool.pages.page_table(3)[:3]) == [NO_PAGE] * 3
    pool.check_all()


def test_the_tokens_of_a_copied_page_count_for_the_window() -> None:
    pool = FakePool(KVPages(16, 4, window=6))
    pool.serve(1, PROMPT)
    assert pool.open(2, [*PROMPT[:9], 7, 7]) == 9  # token 9 sees 4 to 9
    assert pool.pages.page_table(2)[0] == NO_PAGE
    pool.check_all()


@given(
    window=st.integers(1, 12) | st.none(),
    page_size=st.integers(1, 5),
    num_tokens=st.integers(1, 40),
    chunk=st.integers(1, 9),
)
def test_a_sequence_holds_at_most_max_pages(window: int | None, page_size: int, num_tokens: int, chunk: int) -> None:
    pages = KVPages(100, page_size, window=window)
    pages.open(1, [0] * num_tokens, b"root")
    most = 0
    for start in range(0, num_tokens, chunk):
        end = min(start + chunk, num_tokens)
        pages.grow(1, end)
        most = max(most, pages.stats().num_in_use)
        pages.commit(1, [0] * (end - start))
    assert most <= pages.max_pages(num_tokens, chunk)
    if window is None:
        assert most == pages.max_pages(num_tokens, chunk)


def test_max_pages_is_reached() -> None:
    pages = KVPages(100, 4, window=6)
    pages.open(1, [0] * 40, b"root")
    most = 0
    for _ in range(40):
        pages.grow(1, pages.num_tokens(1) + 1)
        most = max(most, pages.stats().num_in_use)
        pages.commit(1, [0])
    assert most == pages.max_pages(40, 1) == 3  # 6 tokens may lie in 3 pages: 1 + 4 + 1
