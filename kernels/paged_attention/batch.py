"""A ragged batch of queries over paged keys: where each sequence's queries and keys are, and what each query sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

TREE_BITS = 63
"""Bits of a word of a tree mask: int64 has a sign."""


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """Several sequences' queries, one behind the other, and the pages that their keys lie in.

    Place j of sequence i is token `j % page_size` of page `page_table[i, j // page_size]`, which is slot
    `page * page_size + j % page_size` of the pool. Query row r of a sequence sees its places [0, key_ends[r]), of these
    the last `window` if there is one.

    A draft that forks is a tree behind place `tree_starts[i]`: row r also sees those places `tree_starts[i] + k` for
    which bit `k % TREE_BITS` of `tree[r, k // TREE_BITS]` is set (none behind the last word), and `key_ends[r]` is at
    most `tree_starts[i]`.
    """

    page_table: Tensor  # int32 [num_seqs, most_pages]; what is behind a sequence's last page is never read
    query_starts: Tensor  # int32 [num_seqs + 1]: the rows of sequence i are [query_starts[i], query_starts[i + 1])
    seq_lens: Tensor  # int32 [num_seqs]: places that hold keys
    key_ends: Tensor  # int32 [num_tokens]
    page_size: int
    most_queries: int
    """Rows of the sequence that has the most: the host knows it without asking the device."""
    most_keys: int
    """Places of the sequence that has the most."""
    tree_starts: Tensor | None = None  # int32 [num_seqs]
    tree: Tensor | None = None  # int64 [num_tokens, num_words]

    @property
    def num_seqs(self) -> int:
        return len(self.seq_lens)


def causal_key_ends(query_lens: Sequence[int], seq_lens: Sequence[int]) -> Tensor:
    """`key_ends` where each sequence's queries are its last tokens: int32 [num_tokens]."""
    ends = [
        torch.arange(seq_len - query_len + 1, seq_len + 1, dtype=torch.int32)
        for query_len, seq_len in zip(query_lens, seq_lens, strict=True)
    ]
    return torch.cat(ends)
