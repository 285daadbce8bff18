"""What sequences share, to the token, and what is left of them when memory is short."""

from __future__ import annotations

from engine.paging import KVPages
from tests.engine.paging.fake_pool import FakePool

ROOT = b"root"


def test_a_prompt_is_found_again_to_the_token() -> None:
    pool = FakePool(KVPages(16, 4))
    assert pool.open(1, [1, 2, 3, 4, 5, 6, 7], ROOT) == 0
    assert pool.run(1, [1, 2, 3, 4, 5, 6, 7])
    pool.close(1)
    pool.check_all()
    assert pool.open(2, [1, 2, 3, 4, 5, 6, 9, 10], ROOT) == 6
    assert pool.run(2, [9, 10])
    pool.check_all()
    assert pool.open(3, [1, 2, 3, 4, 5, 6, 9, 10, 11], ROOT) == 8  # 2 still runs; its full pages are shared
    pool.check_all()
