"""The runs of neighbouring token slots that a page table comes down to, so that attention reads few long pieces."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def page_runs(table: Sequence[int], page_size: int, first_token: int, end_token: int) -> list[tuple[int, int]]:
    """Half-open ranges [start, end) of pool token slots that hold the tokens [first_token, end_token), in order.

    Slot `page * page_size + i` is token slot i of a page. With page_size 4, the tokens [2, 11) of table [7, 8, 3] lie
    in slots [30, 36) and [12, 15). The range must not touch pages that have been given back.
    """
    if first_token >= end_token:
        return []
    first, last = first_token // page_size, (end_token - 1) // page_size
    pages = table[first : last + 1]
    assert min(pages) >= 0, "the range reaches into pages that have been given back"
    runs: list[tuple[int, int]] = []
    start = pages[0]
    for before, page in pairwise(pages):
        if page != before + 1:
            runs.append((start * page_size, (before + 1) * page_size))
            start = page
    runs.append((start * page_size, (pages[-1] + 1) * page_size))
    runs[0] = (runs[0][0] + first_token % page_size, runs[0][1])
    runs[-1] = (runs[-1][0], pages[-1] * page_size + (end_token - 1) % page_size + 1)
    return runs
