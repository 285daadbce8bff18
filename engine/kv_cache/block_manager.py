"""Opens, grows, commits and closes the pages of sequences."""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Sequence

from engine.kv_cache.page_pool import HitCounter, PagePool, PageTable, PoolStats
from engine.kv_cache.prefix_cache import NO_PAGE, ChainNode, PageCopy, PrefixCache, PrefixMatch

SPARE_SHARE = 16
"""Up to 1 / 16 of the pool is kept free of cached pages once it is full, so that neighbouring pages can be allocated.
Without it, sequences that grow side by side take evicted pages one by one from anywhere: 16 of them with 47 pages each
came to 32 runs each, with it to 5 (pool of 2,048 pages, full of cached sequences of 32)."""


class PageAllocator:
    """Allocates pages. A page is free in `pool`, or in use, or only cached: entered in `cache` and evictable."""

    def __init__(self, pool: PagePool, cache: PrefixCache, clock: Callable[[], float]) -> None:
        self.num_evicted = 0
        self._pool = pool
        self._cache = cache
        self._clock = clock

    @property
    def num_available(self) -> int:
        """Pages that are free or can be evicted."""
        return self._pool.num_free + len(self._cache.evictable)

    def allocate(self, count: int, behind: int) -> list[int]:
        """Return pages for the caller's own use; enough must be available. Evicts missing pages, and a few more for
        long runs.
        """
        pool, evictable = self._pool, self._cache.evictable
        spare = pool.num_pages // SPARE_SHARE
        while pool.num_free < count or (pool.num_free < spare and evictable and not pool.has_room(count, behind)):
            self._drop_next()
            self.num_evicted += 1
        return pool.allocate(count, behind)

    def hold(self, page: int) -> None:
        """Count one more user of the page."""
        if self._pool.hold(page) == 1:
            self._cache.evictable.discard(page)

    def release(self, page: int) -> None:
        """Count one user less; after the last one the page stays cached if it is entered in the cache."""
        if self._pool.release(page) == 0:
            node = self._cache.by_page.get(page)
            if node is not None:
                self._cache.evictable.push(node)
            else:
                self._pool.free(page)

    def drop(self, node: ChainNode) -> None:
        """Remove a node's page from the cache; it is free once nobody uses it."""
        page = node.page
        is_unused = page in self._cache.evictable
        if is_unused:
            self._cache.evictable.discard(page)
        self._cache.detach(node)
        if is_unused:
            self._pool.free(page)

    def forget(self) -> None:
        """Free all pages that are only cached."""
        while self._cache.evictable:
            self._drop_next()

    def _drop_next(self) -> None:
        node = self._cache.evictable.pop(self._clock())
        page = node.page
        self._cache.detach(node)
        self._pool.free(page)


def check_pages(
    pool: PagePool, cache: PrefixCache, tables: Collection[PageTable], copies: Collection[PageCopy]
) -> None:
    """Assert that every page is free, held or cached, every holder is counted, and no page leaks."""
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
    """Assert that tables hold what they need and write only to pages of their own."""
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
    """Assert that the chains are connected and in use, and that tails are evicted before heads."""
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


class KVPages:
    """`num_pages` pages of `page_size` tokens each, shared by open sequences and by the cached KV of closed ones.

    A page is free, or held by tables and queued copies, or only cached. Its content never changes while a prompt can
    match it: sequences share whole pages only, and write only to pages that they alone hold and that are not cached.

    window: a token attends to itself and the window - 1 tokens before it (None: all); pages wholly before the window
    are freed, and a sequence can continue from a prefix if the pages that its next token attends to are present. clock:
    seconds. Token ids must lie in [0, 2**32).
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        *,
        window: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if num_pages < 1 or page_size < 1 or (window is not None and window < 1):
            raise ValueError(f"num_pages {num_pages}, page_size {page_size} and window {window} must be at least 1")
        self.num_pages = num_pages
        self.page_size = page_size
        self.window = window
        self._clock = clock
        self._pool = PagePool(num_pages)
        self._cache = PrefixCache(page_size, window)
        self._allocator = PageAllocator(self._pool, self._cache, clock)
        self._tables: dict[int, PageTable] = {}
        self._copies: dict[int, PageCopy] = {}  # by target
        self._hits = HitCounter()
        self._num_uses = 0

    @property
    def num_available(self) -> int:
        """Pages that are free or can be evicted."""
        return self._allocator.num_available

    def max_pages(self, num_tokens: int, chunk: int) -> int:
        """Return the most pages a sequence of `num_tokens` holds at once if no pass runs more than `chunk` of them."""
        whole = -(-num_tokens // self.page_size)
        if self.window is None:
            return whole
        num_visible = self.window - 1 + chunk  # a range of n tokens touches at most ceil((n - 1) / page_size) + 1 pages
        return min(whole, (num_visible - 2) // self.page_size + 2)

    def open(self, sequence_id: int, token_ids: Sequence[int], root: bytes, *, is_counted: bool = True) -> int:
        """Open a sequence on the longest cached prefix of token_ids[:-1]; return its length in tokens.

        The last token is always run, for its logits. Whole pages are shared. Of a page that matches in part, the tokens
        are copied into a page of the sequence's own; until the copies are taken this costs one page more than running
        them, and if the rest of the prompt needs that page, only the whole pages match. is_counted: whether the hits
        are a request's.
        """
        assert sequence_id not in self._tables, f"sequence {sequence_id} is open already"
        match = self._cache.match(root, token_ids, len(token_ids) - 1)
        table = self._tables[sequence_id] = PageTable(match.tail, self._next_use())
        self._cache.enter(match.tail)
        self._share_whole_pages(table, match)
        self._cache.touch(match.tail, table.last_used)
        if match.partial is not None:
            self._copy_partial_page(table, match, token_ids)
        table.uncounted = (len(token_ids), table.num_tokens) if is_counted else None
        return table.num_tokens

    def num_cached(self, token_ids: Sequence[int], root: bytes) -> int:
        """Return the length that `open` would return if it finds a page for the copy. Changes nothing."""
        match = self._cache.match(root, token_ids, len(token_ids) - 1)
        return match.tail.depth * self.page_size + match.num_partial

    def grow(self, sequence_id: int, num_tokens: int) -> bool:
        """Allocate pages for `num_tokens` tokens in all, evicting cached ones; return False, with nothing changed, if
        too few.
        """
        pages = self._tables[sequence_id].pages
        count = -(-num_tokens // self.page_size) - len(pages)
        if count > 0:
            if count > self.num_available:
                return False
            pages.extend(self._allocator.allocate(count, pages[-1] if pages else NO_PAGE))
        return True

    def shrink(self, sequence_id: int, num_tokens: int) -> int:
        """Free the pages beyond `num_tokens` tokens, which include those committed; return how many were freed."""
        table = self._tables[sequence_id]
        assert num_tokens >= table.num_tokens, "what is committed stays"
        num_kept = max(-(-num_tokens // self.page_size), table.first_page)
        given_back = table.pages[num_kept:]
        del table.pages[num_kept:]
        for page in given_back:
            self._allocator.release(page)
        return len(given_back)

    def commit(self, sequence_id: int, token_ids: Sequence[int]) -> None:
        """Mark the KV of these further tokens as final: full pages can be shared from now on.

        The pages must have been grown, and the copies taken.
        """
        table = self._tables[sequence_id]
        assert not (self._copies and self._find_copy(table)), "the pass ran before the sequence's copy was done"
        if table.uncounted is not None:
            self._hits.count(*table.uncounted)
            table.uncounted = None
        num_exact = table.num_exact
        table.num_tokens += len(token_ids)
        table.last_page_ids += token_ids[: table.num_exact - num_exact]
        assert table.num_tokens <= len(table.pages) * self.page_size, "commit follows grow"
        if len(table.last_page_ids) >= self.page_size:
            self._enter_full_pages(table)
        if self.window is not None:
            self._give_back_behind_window(table)

    def taint(self, sequence_id: int, num_exact: int) -> None:
        """Mark the tokens to come from `num_exact` on as approximate: a full prefill would not compute this KV.

        They are committed like all others but never shared: the cache only holds KV that equals a cold run. Not for
        pools with a window.
        """
        table = self._tables[sequence_id]
        assert self.window is None, "KV before a window cannot be placed"
        assert num_exact >= table.num_tokens, "what is committed is exact"
        table.exact_end = num_exact

    def close(self, sequence_id: int, retain_s: float = 0.0) -> None:
        """Free all pages. Committed tokens stay cached until memory is needed, for `retain_s` before others."""
        table = self._tables.pop(sequence_id)
        self._cancel_copy(table)
        if table.tail is not None:
            self._keep_cached(table, self._clock() + retain_s if retain_s > 0 else 0.0)
        self._release_all(table)

    def discard(self, sequence_id: int) -> None:
        """Free all pages of a sequence whose KV may be wrong, and remove its KV from the cache.

        It is unknown which of its pages is wrong, and which sequences continued from it: everything cached that begins
        with the same page is removed, and what open sequences with that beginning have computed is never shared. The
        copies must have been taken.
        """
        assert not self._copies, "a page may be copied from what is to go"
        table = self._tables.pop(sequence_id)
        if table.tail is not None:
            suspects = set(self._cache.find_nodes_like(table.tail))
            for other in [table, *self._tables.values()]:
                if other.tail is not None and (other is table or other.tail in suspects):
                    tail, other.tail = other.tail, None
                    self._cache.leave(tail)
            for node in suspects:
                if node.page != NO_PAGE:
                    self._allocator.drop(node)
        self._release_all(table)

    def page_table(self, sequence_id: int) -> Sequence[int]:
        """Return the physical page of each logical page, NO_PAGE before the window, as an array of 32-bit integers. It
        changes with grow and commit.
        """
        return self._tables[sequence_id].pages

    def num_tokens(self, sequence_id: int) -> int:
        """Return the number of committed tokens, including those found in the cache."""
        return self._tables[sequence_id].num_tokens

    def num_exact(self, sequence_id: int) -> int:
        """Return the number of committed tokens whose KV is what a full prefill computes."""
        return self._tables[sequence_id].num_exact

    def take_copies(self) -> list[PageCopy]:
        """Return the copies that must be made, in this order, before anything else is written to the pool."""
        copies = list(self._copies.values())
        self._copies.clear()
        for copy in copies:
            self._allocator.release(copy.source)
        return copies

    def forget(self) -> None:
        """Drop all KV that is only cached; open sequences keep theirs."""
        self._allocator.forget()

    def stats(self) -> PoolStats:
        """Return hits since the start, and the current use of the pages."""
        return PoolStats(
            num_queries=self._hits.num_queries,
            num_hits=self._hits.num_hits,
            rolling_hit_rate=self._hits.recent_hit_rate,
            num_evicted=self._allocator.num_evicted,
            num_in_use=self.num_pages - self.num_available,
            num_cached=len(self._cache.evictable),
            num_free=self._pool.num_free,
        )

    def check_integrity(self) -> None:
        """Raise AssertionError if the parts do not add up. As slow as the pool is large: for tests."""
        tables, copies = self._tables.values(), self._copies.values()
        check_pages(self._pool, self._cache, tables, copies)
        check_tables(self._pool, self._cache, tables, copies)
        check_cache(self._cache, tables)

    def _release_all(self, table: PageTable) -> None:
        for page in table.pages[table.first_page :]:
            self._allocator.release(page)

    def _next_use(self) -> int:
        self._num_uses += 1
        return self._num_uses

    def _share_whole_pages(self, table: PageTable, match: PrefixMatch) -> None:
        depth = match.tail.depth
        table.num_tokens = depth * self.page_size
        table.first_page = self._cache.first_needed_page(table.num_tokens)
        table.pages = array("i", [NO_PAGE]) * depth
        node = match.tail
        while node.depth > table.first_page:
            table.pages[node.depth - 1] = node.page
            self._allocator.hold(node.page)
            assert node.parent is not None
            node = node.parent

    def _copy_partial_page(self, table: PageTable, match: PrefixMatch, token_ids: Sequence[int]) -> None:
        assert match.partial is not None
        source = match.partial.page
        self._allocator.hold(source)  # before a page is looked for, so that it is not this one that goes
        if self.num_available < -(-len(token_ids) // self.page_size) - match.tail.depth:
            self._allocator.release(source)
            return
        (target,) = self._allocator.allocate(1, table.pages[-1] if table.pages else NO_PAGE)
        self._cache.touch(match.partial, table.last_used)
        self._copies[target] = PageCopy(source, target, match.num_partial)
        table.pages.append(target)
        table.last_page_ids = list(token_ids[table.num_tokens : table.num_tokens + match.num_partial])
        table.num_tokens += match.num_partial
        self._give_back_behind_window(table)

    def _find_copy(self, table: PageTable) -> PageCopy | None:
        index = table.num_tokens // self.page_size
        return self._copies.get(table.pages[index]) if index < len(table.pages) else None

    def _cancel_copy(self, table: PageTable) -> None:
        """Cancel the copy of a sequence that is closed before it was made; its page holds nothing."""
        copy = self._find_copy(table)
        if copy is not None:
            del self._copies[copy.target]
            self._allocator.release(copy.source)
            table.last_page_ids.clear()

    def _enter_full_pages(self, table: PageTable) -> None:
        ids, size = table.last_page_ids, self.page_size
        num_full = len(ids) // size
        first = table.num_exact // size - num_full
        before = tail = table.tail
        for index in range(num_full):
            if tail is not None:
                page_ids = tuple(ids[index * size : (index + 1) * size])
                tail = self._cache.extend(tail, page_ids, table.pages[first + index], table.last_used)
        if tail is not None:
            self._cache.enter(tail)
        if before is not None:
            self._cache.leave(before)
        table.tail = tail
        table.last_page_ids = ids[num_full * size :]

    def _give_back_behind_window(self, table: PageTable) -> None:
        needed = min(self._cache.first_needed_page(table.num_tokens), len(table.pages))
        for index in range(table.first_page, needed):
            self._allocator.release(table.pages[index])
            table.pages[index] = NO_PAGE
        table.first_page = max(table.first_page, needed)

    def _keep_cached(self, table: PageTable, retained_until: float) -> None:
        """Enter the partly filled page into the cache, and own pages whose cached twin has been evicted meanwhile."""
        tail = node = table.tail
        assert tail is not None
        assert node is not None
        while node.depth > table.first_page:
            if node.page == NO_PAGE:
                self._cache.attach(node, table.pages[node.depth - 1])
            assert node.parent is not None
            node = node.parent
        leaf = None
        if table.last_page_ids:
            page = table.pages[tail.depth]
            leaf = self._cache.add_leaf(tail, tuple(table.last_page_ids), page, table.last_used)
        self._cache.touch(leaf or tail, self._next_use(), retained_until)
        self._cache.leave(tail)
