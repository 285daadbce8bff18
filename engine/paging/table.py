"""The pages of one open sequence."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.paging.chain import ChainNode


@dataclass(slots=True)
class PageTable:
    """What a sequence holds, and how far it has come.

    pages: the physical page of each logical one; NO_PAGE below `first_page`, what lies behind the window. num_tokens:
    committed. exact_end: tokens from here on have KV that is not what a full prefill computes, and are never entered
    into the cache; None: there are none. tail: the node of the last whole page of exact ones; None when a hash
    collision keeps what follows out of the cache. last_page_ids: the committed exact tokens behind it, which fill no
    page. last_used: when the sequence was opened. uncounted: tokens asked for and found at open, until the first commit
    counts them: an admission that is taken back before it ran counts nothing.
    """

    tail: ChainNode | None
    last_used: int
    pages: list[int] = field(default_factory=list)
    first_page: int = 0
    num_tokens: int = 0
    exact_end: int | None = None
    last_page_ids: list[int] = field(default_factory=list)
    uncounted: tuple[int, int] | None = None

    @property
    def num_exact(self) -> int:
        """Committed tokens whose KV is what a full prefill computes."""
        return self.num_tokens if self.exact_end is None else min(self.num_tokens, self.exact_end)
