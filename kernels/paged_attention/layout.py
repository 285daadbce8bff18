"""Which rows see which keys in a shape of the op: counted for its cost, and laid out as random inputs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from kernels.op import Shape
from kernels.paged_attention.batch import TREE_BITS, PagedBatch

SPARE_PAGES = 3
"""Pages of a pool that belong to nobody, and are NaN."""


@dataclass(frozen=True, slots=True)
class Layout:
    """One sequence: its length, and what each of its rows sees.

    Rows of a draft with `branches` stand behind one another from `tree_start` on; row r is on branch `r % branches` and
    sees itself and what came before it there.
    """

    seq_len: int
    key_ends: tuple[int, ...]
    window: int
    branches: int

    @property
    def tree_start(self) -> int:
        return self.seq_len - len(self.key_ends) if self.branches else self.seq_len

    @property
    def num_seen(self) -> int:
        """Pairs of a row and a key that it sees."""
        ahead = sum(row // self.branches + 1 for row in range(len(self.key_ends))) if self.branches else 0
        return sum(end - self._low(end) for end in self.key_ends) + ahead

    @property
    def seen(self) -> list[tuple[int, int]]:
        """Ranges of places that any row sees, ascending and apart."""
        ranges = [(self._low(end), end) for end in sorted(self.key_ends)]
        if self.branches:
            ranges.append((self.tree_start, self.seq_len))
        apart = [ranges[0]]
        for first, last in ranges[1:]:  # the lower ends ascend with the upper ones
            if first <= apart[-1][1]:
                apart[-1] = (apart[-1][0], last)
            else:
                apart.append((first, last))
        return apart

    @property
    def num_keys(self) -> int:
        """Keys that any row sees."""
        return sum(last - first for first, last in self.seen)

    def num_pages(self, page_size: int) -> int:
        """Pages that hold one of these."""
        return len({page for first, last in self.seen for page in range(first // page_size, -(-last // page_size))})

    def tree_words(self, num_words: int) -> list[list[int]]:
        """The rows' tree masks, [num_rows][num_words]."""
        words = [[0] * num_words for _ in self.key_ends]
        for row, own in enumerate(words):
            for seen in range(row % self.branches, row + 1, self.branches):
                own[seen // TREE_BITS] |= 1 << seen % TREE_BITS
        return words

    def _low(self, end: int) -> int:
        return max(0, end - self.window) if self.window else 0


def layouts(shape: Shape) -> list[Layout]:
    """The sequences of a shape; where it is `uneven`, each has so many rows fewer than the last one, and keys."""
    return [_layout(shape, index * shape.get("uneven", 0)) for index in range(shape["num_seqs"])]


def _layout(shape: Shape, less: int) -> Layout:
    num_rows = max(1, shape["num_rows"] - less)
    seq_len = max(num_rows, shape["num_keys"] - 7 * less)
    branches = shape["branches"]
    if branches:
        ends = [seq_len - num_rows] * num_rows
    else:
        ends = _scattered_ends(num_rows, seq_len, min(shape["places"], num_rows))
    return Layout(seq_len, tuple(ends), shape["window"], branches)


def _scattered_ends(num_rows: int, seq_len: int, num_places: int) -> list[int]:
    """What rows in so many places see: as many neighbours at the end of each of as many parts of the sequence."""
    borders = [num_rows * at // num_places for at in range(num_places + 1)]
    ends: list[int] = []
    for at, (first, last) in enumerate(pairwise(borders), start=1):
        end = max(last, seq_len * at // num_places)
        ends += range(end - (last - first) + 1, end + 1)
    return ends


def batch_of(shape: Shape, device: torch.device, generator: torch.Generator) -> tuple[PagedBatch, Tensor, int]:
    """The batch of a shape, its pages in random order; the slots that hold its keys, int64; and the pool's slots."""
    each, page_size = layouts(shape), shape["page_size"]
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
        most_queries=max(num_rows),
        most_keys=max(one.seq_len for one in each),
        tree_starts=ints([one.tree_start for one in each]) if shape["branches"] else None,
        tree=_tree(each, device) if shape["branches"] else None,
    )
    return batch, torch.cat(slots), total * page_size


def _tree(each: list[Layout], device: torch.device) -> Tensor:
    num_words = -(-max(len(one.key_ends) for one in each) // TREE_BITS)
    words = [own for one in each for own in one.tree_words(num_words)]
    return torch.tensor(words, dtype=torch.int64, device=device)
