"""Damage to the books is found, whichever book it is in."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.kv_cache import KVPages, PageCopy
from tests.engine.kv_cache.fake_pool import FakePool


def _share_a_page_that_is_written_to(pages: KVPages) -> None:
    table = pages._tables[1]
    pages._tables[2].pages.append(table.pages[-1])
    pages._pool.num_holders[table.pages[-1]] += 1


def _cache_a_page_that_is_written_to(pages: KVPages) -> None:
    tail = pages._tables[1].tail
    assert tail is not None
    pages._cache.extend(tail, (7,), pages._tables[1].pages[-1], 0)


def _queue_a_copy_to_someone_elses_page(pages: KVPages) -> None:
    pages._copies[0] = PageCopy(pages._tables[1].pages[0], 0, 1)
    pages._pool.num_holders[pages._tables[1].pages[0]] += 1


DAMAGE: dict[str, tuple[Callable[[KVPages], object], str]] = {
    "a holder too many": (lambda pages: pages._allocator.hold(pages._tables[1].pages[0]), "hold it"),
    "a page lost": (lambda pages: pages._pool.allocate(1), "hold it"),
    "a page in use is free": (lambda pages: pages._pool._free.__setitem__(pages._tables[1].pages[0], 1), "leaks"),
    "a cached page cannot go": (lambda pages: pages._cache.evictable.pop(0.0), "may be evicted and not"),
    "a page shared and written to": (_share_a_page_that_is_written_to, "will be written to and is shared"),
    "a page cached and written to": (_cache_a_page_that_is_written_to, "will be written to and is cached"),
    "a copy to another's page": (_queue_a_copy_to_someone_elses_page, "no sequence fills"),
    "a sequence too many": (lambda pages: pages._cache.enter(pages._cache.roots[b"root"]), "not counted"),
    "a head older than its tail": (
        lambda pages: setattr(pages._cache.roots[b"root"], "last_used", 0),
        "before its tail",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found(name: str) -> None:
    pool = FakePool(KVPages(16, 4))
    pool.serve(0, [9] * 5)
    for sequence_id in (1, 2):
        pool.open(sequence_id, [sequence_id] * 7)
        pool.run(sequence_id, [sequence_id] * 6)
    pool.pages.check_integrity()
    damage, reason = DAMAGE[name]
    damage(pool.pages)
    with pytest.raises(AssertionError, match=reason):
        pool.pages.check_integrity()
