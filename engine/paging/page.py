"""What the pages of the pool are called, and the one thing that is done to their content from here: a copy."""

from __future__ import annotations

from dataclasses import dataclass

NO_PAGE = -1
"""Stands in a page table where a page has been given back, because it lies behind the attention window."""


@dataclass(frozen=True, slots=True)
class PageCopy:
    """The first `num_tokens` token slots of page `source` are to be copied, in every layer, to page `target`."""

    source: int
    target: int
    num_tokens: int
