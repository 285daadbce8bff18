"""Ragged batches of queries over paged keys, and random batches for parity checks and benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from kernels.op import Shape

TREE_BITS = 63
"""Bits used of a word of a tree mask: int64 has a sign."""


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """The queries of several sequences, concatenated, and the pages that hold their keys.

    Position j of sequence i is token `j % page_size` of page `page_table[i, j // page_size]`, that is, slot `page *
    page_size + j % page_size` of the pool. Query row r of a sequence sees its positions [0, key_ends[r]), of these the
    last `window` if there is one.

    A draft tree starts at position `tree_starts[i]`. Row r also sees the positions `tree_starts[i] + k` for which bit
    `k % TREE_BITS` of `tree[r, k // TREE_BITS]` is set (none after the last word), and `key_ends[r]` is at most
    `tree_starts[i]`.
    """

    page_table: Tensor  # int32 [num_seqs, most_pages]; entries after a sequence's last page are never read
    query_starts: Tensor  # int32 [num_seqs + 1]: the rows of sequence i are [query_starts[i], query_starts[i + 1])
    seq_lens: Tensor  # int32 [num_seqs]: places that hold keys
    key_ends: Tensor  # int32 [num_tokens]
    page_size: int
    max_query_len: int
    """The largest number of rows of a sequence; the host knows it without asking the device."""
    max_seq_len: int
    """The largest number of positions of a sequence."""
    tree_starts: Tensor | None = None  # int32 [num_seqs]
    tree: Tensor | None = None  # int64 [num_tokens, num_words]

    @property
    def num_seqs(self) -> int:
        return len(self.seq_lens)


def make_causal_key_ends(query_lens: Sequence[int], seq_lens: Sequence[int]) -> Tensor:
    """Return `key_ends` if each sequence's queries are its last tokens: int32 [num_tokens]."""
    ends = [
        torch.arange(seq_len - query_len + 1, seq_len + 1, dtype=torch.int32)
        for query_len, seq_len in zip(query_lens, seq_lens, strict=True)
    ]
    return torch.cat(ends)


SPARE_PAGES = 3
"""Pages of a pool that belong to no sequence and are NaN."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The length of one sequence, and the keys that each of its rows sees.

    Rows of a draft with `branches` follow each other from `tree_start`. Row r is on branch `r % branches`; it sees
    itself and the rows before it on that branch.
    """

    seq_len: int
    key_ends: tuple[int, ...]
    window: int
    branches: int

    @property
    def tree_start(self) -> int:
        return self.seq_len - len(self.key_ends) if self.branches else self.seq_len

    @property
    def num_visible_pairs(self) -> int:
        """The number of pairs of a row and a key that it sees."""
        ahead = sum(row // self.branches + 1 for row in range(len(self.key_ends))) if self.branches else 0
        return sum(end - self._get_first_key(end) for end in self.key_ends) + ahead

    @property
    def visible_ranges(self) -> list[tuple[int, int]]:
        """Ranges of positions that any row sees, ascending and disjoint."""
        ranges = [(self._get_first_key(end), end) for end in sorted(self.key_ends)]
        if self.branches:
            ranges.append((self.tree_start, self.seq_len))
        apart = [ranges[0]]
        for first, last in ranges[1:]:  # the starts ascend with the ends
            if first <= apart[-1][1]:
                apart[-1] = (apart[-1][0], last)
            else:
                apart.append((first, last))
        return apart

    @property
    def num_keys(self) -> int:
        """The number of keys that any row sees."""
        return sum(last - first for first, last in self.visible_ranges)

    def num_pages(self, page_size: int) -> int:
        """Count the pages that hold a visible key."""
        return len(
            {page for first, last in self.visible_ranges for page in range(first // page_size, -(-last // page_size))}
        )

    def make_tree_words(self, num_words: int) -> list[list[int]]:
        """Return the rows' tree masks, [num_rows][num_words]."""
        words = [[0] * num_words for _ in self.key_ends]
        for row, own in enumerate(words):
            for seen in range(row % self.branches, row + 1, self.branches):
                own[seen // TREE_BITS] |= 1 << seen % TREE_BITS
        return words

    def _get_first_key(self, end: int) -> int:
        return max(0, end - self.window) if self.window else 0


def make_layouts(shape: Shape) -> list[Layout]:
    """Return the sequences of a shape; with `uneven`, each has that many rows, and some keys, fewer than the next."""
    return [_make_layout(shape, index * shape.get("uneven", 0)) for index in range(shape["num_seqs"])]


def _make_layout(shape: Shape, less: int) -> Layout:
    num_rows = max(1, shape["num_rows"] - less)
    seq_len = max(num_rows, shape["num_keys"] - 7 * less)
    branches = shape["branches"]
    if branches:
        ends = [seq_len - num_rows] * num_rows
    else:
        ends = _spread_key_ends(num_rows, seq_len, min(shape["places"], num_rows))
    return Layout(seq_len, tuple(ends), shape["window"], branches)


def _spread_key_ends(num_rows: int, seq_len: int, num_places: int) -> list[int]:
    """Return the key ends of rows at the ends of `num_places` equal parts of the sequence."""
    borders = [num_rows * at // num_places for at in range(num_places + 1)]
    ends: list[int] = []
    for at, (first, last) in enumerate(pairwise(borders), start=1):
        end = max(last, seq_len * at // num_places)
        ends += range(end - (last - first) + 1, end + 1)
    return ends


def make_batch(shape: Shape, device: torch.device, generator: torch.Generator) -> tuple[PagedBatch, Tensor, int]:
    """Make the batch of a shape with its pages in random order.

    Returns the batch, the slots that hold its keys (int64), and the number of slots of the pool.
    """
    each, page_size = make_layouts(shape), shape["page_size"]
    num_pages = [-(-one.seq_len // page_size) for one in each]
    total = sum(num_pages) + SPARE_PAGES
    pages = torch.randperm(total, device=device, generator=generator).to(torch.int32)
    table = pages[-1].repeat(len(each), max(num_pages))
    slots, first = [], 0
    for row, one, count in zip(table, each, num_pages, strict=True):
        row[:count] = own = pages[first : first + count]
        first += count
        places = own.to(torch.int64)[:, None] * page_size + torch.arange(page_size, device=device)
        slots.append(places.flatten()[: one.seq_len])

    def ints(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    num_rows = [len(one.key_ends) for one in each]
    batch = PagedBatch(
        page_table=table,
        query_starts=ints([0, *accumulate(num_rows)]),
        seq_lens=ints([one.seq_len for one in each]),
        key_ends=ints([end for one in each for end in one.key_ends]),
        page_size=page_size,
        max_query_len=max(num_rows),
        max_seq_len=max(one.seq_len for one in each),
        tree_starts=ints([one.tree_start for one in each]) if shape["branches"] else None,
        tree=_make_tree(each, device) if shape["branches"] else None,
    )
    return batch, torch.cat(slots), total * page_size


def _make_tree(each: list[Layout], device: torch.device) -> Tensor:
    num_words = -(-max(len(one.key_ends) for one in each) // TREE_BITS)
    words = [own for one in each for own in one.make_tree_words(num_words)]
    return torch.tensor(words, dtype=torch.int64, device=device)
