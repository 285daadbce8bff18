"""The prefix cache: finds the longest prefix of a prompt whose KV is in some page, to the token."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from engine.paging.chain import ChainNode
from engine.paging.eviction import EvictionQueue
from engine.paging.keys import page_key
from engine.paging.page import NO_PAGE


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """`tail`: the whole pages; `partial`: a page behind them, of which the first `num_partial` tokens match."""

    tail: ChainNode
    partial: ChainNode | None = None
    num_partial: int = 0


class PrefixCache:
    """The nodes of all chains, and which page each of them has.

    `window`: a token sees itself and the window - 1 tokens before it; None: all tokens before it.
    """

    def __init__(self, page_size: int, window: int | None = None) -> None:
        self.page_size = page_size
        self.window = window
        self.evictable = EvictionQueue()
        self.nodes: dict[bytes, ChainNode] = {}
        self.roots: dict[bytes, ChainNode] = {}
        self.by_page: dict[int, ChainNode] = {}

    def first_needed_page(self, num_tokens: int) -> int:
        """The first page that the token behind `num_tokens` others sees (or its own, where it sees no other)."""
        return max(0, num_tokens - self.window + 1) // self.page_size if self.window else 0

    def match(self, root: bytes, token_ids: Sequence[int], limit: int) -> PrefixMatch:
        """The longest prefix of token_ids[:limit] that a sequence can go on from. Changes nothing.

        With a window, only the pages that the next token sees must be there. Of several pages that begin with what
        follows, the one with the most tokens in common is taken, whole or partly filled.
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
        """The node behind `tail` with these tokens; `page` becomes its page if it has none.

        The first page that was computed stays, another of the same tokens is not entered. None where the key is that
        of another prefix (a hash collision): what follows cannot be cached then, which costs time and nothing else.
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
        """The node of a page that is filled with these tokens only; a page that begins with them serves as well.

        A shorter page that these tokens begin with stays too: both hold the KV of the tokens they are entered with, a
        match takes the longer, and the shorter is not used any more and goes first.
        """
        place = bisect_left(tail.children, (token_ids,))
        if place < len(tail.children) and tail.children[place][0][: len(token_ids)] == token_ids:
            return self.by_page[tail.children[place][1]]
        return self.extend(tail, token_ids, page, last_used)

    def attach(self, node: ChainNode, page: int) -> None:
        """The node's KV is in this page from now on, and the page's content for its tokens is final."""
        assert node.parent is not None
        node.page = page
        self.by_page[page] = node
        insort(node.parent.children, (node.token_ids, page))

    def detach(self, node: ChainNode) -> None:
        """The node's page is needed for something else."""
        assert node.parent is not None
        del node.parent.children[bisect_left(node.parent.children, (node.token_ids,))]
        del self.by_page[node.page]
        node.page = NO_PAGE
        self._prune(node)

    def enter(self, node: ChainNode) -> None:
        """A sequence goes on from this node; from a root that is new, the first one."""
        if node.parent is None:
            self.roots[node.key] = node
        node.num_users += 1

    def leave(self, node: ChainNode) -> None:
        """A sequence no longer goes on from this node."""
        node.num_users -= 1
        self._prune(node)

    def nodes_like(self, tail: ChainNode) -> list[ChainNode]:
        """All nodes of the prefixes that begin with the first page of this one; none for an empty prefix.

        As slow as the cache is large.
        """
        path = list(_path(tail))
        return [node for node in self.nodes.values() if path and path[-1] in _path(node)]

    def touch(self, node: ChainNode | None, last_used: int, retained_until: float = 0.0) -> None:
        """The prefix is used, and with it all shorter ones. What was used as late already is so up to the root."""
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
        """Of sorted sequences, the one with the longest common prefix stands next to where `token_ids` would stand."""
        place = bisect_left(tail.children, (token_ids,))
        best = PrefixMatch(tail)
        for other_ids, page in tail.children[max(0, place - 1) : place + 1]:
            num_common = common_prefix_len(token_ids, other_ids)
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


def _path(node: ChainNode) -> Iterator[ChainNode]:
    """The node and those before it, but for the root."""
    while node.parent is not None:
        yield node
        node = node.parent


def common_prefix_len(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens the two begin with in common."""
    for index, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return index
    return min(len(a), len(b))
