"""One link of the hash chain: a page's tokens, behind those of the pages before it."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.paging.page import NO_PAGE


@dataclass(slots=True, eq=False)
class ChainNode:
    """A prefix of token ids that ends with those of one page; the root of a chain is the empty prefix.

    Two nodes of a cache are never the same prefix, so a node's identity stands for all its tokens.

    key: hash of the prefix, for the root what it was given. parent: the prefix one page shorter. token_ids: the page's
    own, fewer than a page holds only in a leaf. depth: pages up to here. page: where the KV is; NO_PAGE in a root, and
    in a node that was evicted before what follows it was: it stays as a link, so that what follows is found again when
    the same tokens are computed anew, and only then. last_used: grows with every use of a prefix that goes through
    here, so no parent is older than its child. retained_until: in seconds of the clock; no parent's is earlier.
    num_users: children, and sequences that go on from here; at zero, a node without a page is of no use. children:
    (token_ids, page) of those with a page, sorted.
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
