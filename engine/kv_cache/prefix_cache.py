"""The prefix cache: a hash chain over token ids, with least-recently-used eviction."""

from __future__ import annotations

import struct
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from heapq import heapify, heappop, heappush

from engine.types import count_common_prefix

KEY_BYTES = 16


def root_key(fingerprint: bytes, salt: str, adapter: str | None) -> bytes:
    """Return the key that a chain starts from; sequences share KV only under equal roots.

    fingerprint: of the model (weights, config, RoPE, dtype). salt: one for each tenant. adapter: the LoRA adapter, None
    for the bare model (which differs from an adapter named ""). Every field is preceded by its length, so no two
    triples have the same bytes, ("ab", "c") differs from ("a", "bc"), and no key begins with another. The key is not
    hashed, so tenants cannot collide at all.
    """
    fields = [fingerprint, salt.encode("utf-8", "surrogatepass")]
    if adapter is not None:
        fields.append(adapter.encode("utf-8", "surrogatepass"))
    return struct.pack("<B", len(fields)) + b"".join(struct.pack("<Q", len(field)) + field for field in fields)


def page_key(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Return the key of a page: blake2b-128 over the key of the page before it and its ids as little-endian uint32.

    It depends on all tokens up to the page's last. Token ids must lie in [0, 2**32): struct.error otherwise.
    """
    return blake2b(parent + struct.pack(f"<{len(token_ids)}I", *token_ids), digest_size=KEY_BYTES).digest()


NO_PAGE = -1
"""Stands in a page table for a page that was freed because it lies before the attention window."""


@dataclass(frozen=True, slots=True)
class PageCopy:
    """A copy of the first `num_tokens` token slots of page `source`, in every layer, to page `target`."""

    source: int
    target: int
    num_tokens: int


@dataclass(slots=True, eq=False)
class ChainNode:
    """A prefix of token ids that ends with those of one page; the root of a chain is the empty prefix.

    Two nodes of a cache are never the same prefix, so a node's identity stands for all its tokens.

    key: hash of the prefix, for the root the given key. parent: the prefix one page shorter. token_ids: the page's own,
    fewer than a page holds only in a leaf. depth: pages up to here. page: where the KV is; NO_PAGE in a root, and in a
    node that was evicted before its descendants: it stays as a link, so that they are found again once the same tokens
    are computed anew. last_used: grows with every use of a prefix that goes through here, so no parent is older than
    its child. retained_until: in seconds of the clock; no parent's is earlier. num_users: children, and sequences that
    continue from here; at zero, a node without a page is of no use. children: (token_ids, page) of those with a page,
    sorted.
    """

    key: bytes
    parent: ChainNode | None = None
    token_ids: tuple[int, ...] = ()
    depth: int = 0
    page: int = NO_PAGE
    last_used: int = 0
    retained_until: float = 0.0
    num_users: int = 0
    children: list[tuple[tuple[int, ...], int]] = field(default_factory=list)


class EvictionQueue:
    """The cached pages that nobody uses, in the order of eviction.

    The order is that of their last use; of those used together the deepest goes first, so that a prefix is left of a
    chain. Pages whose retention has not run out go after all others, the one that runs out first before the rest.

    Both heaps keep stale entries: an entry is current while its page is queued with the same last use. This is cheaper
    than finding them; a heap is swept when most of it is stale.
    """

    def __init__(self) -> None:
        self._queued: dict[int, ChainNode] = {}  # by page
        self._by_use: list[tuple[int, int, int]] = []  # (last_used, -depth, page)
        self._by_expiry: list[tuple[float, int, int, int]] = []  # (retained_until, last_used, -depth, page)

    def __len__(self) -> int:
        return len(self._queued)

    def __contains__(self, page: int) -> bool:
        return page in self._queued

    def push(self, node: ChainNode) -> None:
        """Queue the node's page, which is no longer used, or whose last use or retention has changed."""
        self._queued[node.page] = node
        if node.retained_until:
            heappush(self._by_expiry, (node.retained_until, node.last_used, -node.depth, node.page))
        else:
            heappush(self._by_use, (node.last_used, -node.depth, node.page))
        if len(self._by_use) + len(self._by_expiry) > 4 * len(self._queued) + 64:
            self._sweep()

    def discard(self, page: int) -> None:
        """Remove the page, which is used again, if it is queued."""
        self._queued.pop(page, None)

    def pop(self, now: float) -> ChainNode:
        """Remove and return the node whose page is evicted next; the queue must not be empty."""
        while self._by_expiry and self._by_expiry[0][0] <= now:
            _, *entry = heappop(self._by_expiry)
            heappush(self._by_use, (entry[0], entry[1], entry[2]))
        while self._by_use:
            last_used, _, page = heappop(self._by_use)
            if self._is_current(last_used, page):
                return self._queued.pop(page)
        while True:
            _, last_used, _, page = heappop(self._by_expiry)
            if self._is_current(last_used, page):
                return self._queued.pop(page)

    def _is_current(self, last_used: int, page: int) -> bool:
        node = self._queued.get(page)
        return node is not None and node.last_used == last_used

    def _sweep(self) -> None:
        self._by_use = [entry for entry in self._by_use if self._is_current(entry[0], entry[2])]
        self._by_expiry = [entry for entry in self._by_expiry if self._is_current(entry[1], entry[3])]
        heapify(self._by_use)
        heapify(self._by_expiry)


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """`tail`: the whole pages; `partial`: a page after them, of which the first `num_partial` tokens match."""

    tail: ChainNode
    partial: ChainNode | None = None
    num_partial: int = 0


class PrefixCache:
    """The nodes of all chains, and the page of each of them.

    `window`: a token attends to itself and the window - 1 tokens before it; None: to all tokens before it.
    """

    def __init__(self, page_size: int, window: int | None = None) -> None:
        self.page_size = page_size
        self.window = window
        self.evictable = EvictionQueue()
        self.nodes: dict[bytes, ChainNode] = {}
        self.roots: dict[bytes, ChainNode] = {}
        self.by_page: dict[int, ChainNode] = {}

    def first_needed_page(self, num_tokens: int) -> int:
        """Return the first page that the token after `num_tokens` others attends to (or its own page, if
        to no other).
        """
        return max(0, num_tokens - self.window + 1) // self.page_size if self.window else 0

    def match(self, root: bytes, token_ids: Sequence[int], limit: int) -> PrefixMatch:
        """Return the longest prefix of token_ids[:limit] that a sequence can continue from. Changes nothing.

        With a window, only the pages that the next token attends to must be present. Of several pages that begin with
        the next tokens, the one with the most tokens in common is taken, whole or partly filled.
        """
        tail = node = self.roots.get(root) or ChainNode(root)
        run_start = 0  # the pages [run_start, node.depth) are there
        while (end := (node.depth + 1) * self.page_size) <= limit:
            child = self._child(node, tuple(token_ids[end - self.page_size : end]))
            if child is None:
                break
            node = child
            if node.page == NO_PAGE:
                run_start = node.depth
            if run_start <= self.first_needed_page(end):
                tail = node
        start = tail.depth * self.page_size
        return self._partial_match(tail, tuple(token_ids[start : min(start + self.page_size, limit)]))

    def extend(self, tail: ChainNode, token_ids: tuple[int, ...], page: int, last_used: int) -> ChainNode | None:
        """Return the node after `tail` with these tokens; `page` becomes its page if it has none.

        The first page that was computed stays, another one with the same tokens is not entered. Returns None if the key
        is that of another prefix (a hash collision): what follows cannot be cached then, which costs only time.
        """
        key = page_key(tail.key, token_ids)
        node = self.nodes.get(key)
        if node is None:
            node = self.nodes[key] = ChainNode(key, tail, token_ids, tail.depth + 1, last_used=last_used)
            tail.num_users += 1
        elif node.parent is not tail or node.token_ids != token_ids:
            return None
        if node.page == NO_PAGE:
            self.attach(node, page)
        self.touch(node, last_used)
        return node

    def add_leaf(self, tail: ChainNode, token_ids: tuple[int, ...], page: int, last_used: int) -> ChainNode | None:
        """Return the node of a page that is filled with these tokens only; a page that begins with them serves as well.

        A shorter page that these tokens begin with stays too: both hold the KV of their tokens, a match takes the
        longer, and the shorter is not used any more and is evicted first.
        """
        place = bisect_left(tail.children, (token_ids,))
        if place < len(tail.children) and tail.children[place][0][: len(token_ids)] == token_ids:
            return self.by_page[tail.children[place][1]]
        return self.extend(tail, token_ids, page, last_used)

    def attach(self, node: ChainNode, page: int) -> None:
        """Set the node's page, whose content for the node's tokens is final."""
        assert node.parent is not None
        node.page = page
        self.by_page[page] = node
        insort(node.parent.children, (node.token_ids, page))

    def detach(self, node: ChainNode) -> None:
        """Take the page from the node, for another use."""
        assert node.parent is not None
        del node.parent.children[bisect_left(node.parent.children, (node.token_ids,))]
        del self.by_page[node.page]
        node.page = NO_PAGE
        self._prune(node)

    def enter(self, node: ChainNode) -> None:
        """Count a sequence that continues from this node, which may be a new root."""
        if node.parent is None:
            self.roots[node.key] = node
        node.num_users += 1

    def leave(self, node: ChainNode) -> None:
        """Count one sequence less that continues from this node."""
        node.num_users -= 1
        self._prune(node)

    def find_nodes_like(self, tail: ChainNode) -> list[ChainNode]:
        """Return all nodes of prefixes that begin with the first page of this one; none for an empty prefix.

        As slow as the cache is large.
        """
        path = list(_iter_path(tail))
        return [node for node in self.nodes.values() if path and path[-1] in _iter_path(node)]

    def touch(self, node: ChainNode | None, last_used: int, retained_until: float = 0.0) -> None:
        """Mark the prefix as used, and all shorter ones. It stops at a node that was used as late already."""
        while node is not None and node.last_used < last_used:
            node.last_used = last_used
            node.retained_until = max(node.retained_until, retained_until)
            if node.page in self.evictable:
                self.evictable.push(node)
            node = node.parent

    def _child(self, node: ChainNode, token_ids: tuple[int, ...]) -> ChainNode | None:
        child = self.nodes.get(page_key(node.key, token_ids))
        return child if child and child.parent is node and child.token_ids == token_ids else None

    def _partial_match(self, tail: ChainNode, token_ids: tuple[int, ...]) -> PrefixMatch:
        """Of sorted sequences, the one with the longest common prefix is next to where `token_ids` would
        be inserted.
        """
        place = bisect_left(tail.children, (token_ids,))
        best = PrefixMatch(tail)
        for other_ids, page in tail.children[max(0, place - 1) : place + 1]:
            num_common = count_common_prefix(token_ids, other_ids)
            if num_common > best.num_partial:
                best = PrefixMatch(tail, self.by_page[page], num_common)
        return best

    def _prune(self, node: ChainNode) -> None:
        """Forget nodes that have no page and lead to none."""
        while node.page == NO_PAGE and node.num_users == 0 and node.parent is not None:
            del self.nodes[node.key]
            node = node.parent
            node.num_users -= 1
        if node.parent is None and node.num_users == 0:
            del self.roots[node.key]


def _iter_path(node: ChainNode) -> Iterator[ChainNode]:
    """Yield the node and those before it, except the root."""
    while node.parent is not None:
        yield node
        node = node.parent
