"""The parts of the KV bookkeeping add up: a slow look at all of it, for tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from engine.paging.chain import ChainNode
from engine.paging.page import NO_PAGE, PageCopy
from engine.paging.pool import PagePool
from engine.paging.prefix_cache import PrefixCache
from engine.paging.table import PageTable


def check_pages(
    pool: PagePool, cache: PrefixCache, tables: Collection[PageTable], copies: Collection[PageCopy]
) -> None:
    """Every page is free, held or cached; every holder is counted; no page leaks."""
    holders = Counter(page for table in tables for page in table.pages if page != NO_PAGE)
    holders.update(copy.source for copy in copies)
    for page in range(pool.num_pages):
        assert pool.num_holders[page] == holders[page], f"page {page}: {holders[page]} hold it"
        used, cached = holders[page] > 0, page in cache.by_page
        assert pool.is_free(page) == (not used and not cached), f"page {page} is free and not, or leaks"
        assert (page in cache.evictable) == (cached and not used), f"page {page} may be evicted and not"
    assert pool.num_free == sum(map(pool.is_free, range(pool.num_pages)))


def check_tables(
    pool: PagePool, cache: PrefixCache, tables: Collection[PageTable], copies: Collection[PageCopy]
) -> None:
    """Tables hold what they need and write only to pages of their own."""
    for table in tables:
        num_whole = table.num_exact // cache.page_size
        assert len(table.last_page_ids) == table.num_exact % cache.page_size
        assert table.num_tokens <= len(table.pages) * cache.page_size
        assert all((page == NO_PAGE) == (index < table.first_page) for index, page in enumerate(table.pages))
        assert table.first_page == min(cache.first_needed_page(table.num_tokens), len(table.pages))
        for page in table.pages[num_whole:]:
            assert pool.num_holders[page] == 1, f"page {page} will be written to and is shared"
            assert page not in cache.by_page, f"page {page} will be written to and is cached"
        assert table.tail is None or table.tail.depth == num_whole
    last_pages = {table.pages[table.num_exact // cache.page_size] for table in tables if table.last_page_ids}
    for copy in copies:
        assert copy.target in last_pages, "a copy goes to a page that no sequence fills"
        assert copy.num_tokens <= len(cache.by_page[copy.source].token_ids)


def check_cache(cache: PrefixCache, tables: Collection[PageTable]) -> None:
    """The chains hang together, serve a purpose, and are in an order in which tails go before heads."""
    for page, node in cache.by_page.items():
        assert node.page == page
        assert cache.nodes[node.key] is node
    users: Counter[ChainNode] = Counter(table.tail for table in tables if table.tail is not None)
    children: dict[ChainNode, list[tuple[tuple[int, ...], int]]] = {}
    for key, node in cache.nodes.items():
        parent = node.parent
        assert node.key == key
        assert parent is not None
        assert parent is cache.roots.get(parent.key) or parent is cache.nodes.get(parent.key)
        assert len(parent.token_ids) in (0, cache.page_size), "nothing follows a page that is filled in part"
        assert node.depth == parent.depth + 1
        assert node.last_used <= parent.last_used, "a head goes before its tail"
        assert node.retained_until <= parent.retained_until, "a head goes before its tail"
        users[parent] += 1
        if node.page != NO_PAGE:
            assert cache.by_page[node.page] is node
            children.setdefault(parent, []).append((node.token_ids, node.page))
    for node in [*cache.nodes.values(), *cache.roots.values()]:
        assert node.num_users == users[node], "a user of a node is not counted, or counted twice"
        assert node.page != NO_PAGE or node.num_users > 0, "a node without a page leads nowhere"
        assert node.children == sorted(children.get(node, []))
