"""What torch has for attention: SDPA and FlexAttention, over keys that were gathered beforehand.

Both are given more than a service could give them: contiguous keys and values, and masks made once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from kernels.paged_attention.batch import PagedBatch
from kernels.paged_attention.reference import seen_places, slots_of

Way = Callable[[], tuple[Tensor, ...]]


def ways(
    query: Tensor, pool_keys: Tensor, pool_values: Tensor, batch: PagedBatch, window: int | None
) -> Mapping[str, Way]:
    """By name; nothing for sequences of different lengths, which would be padded."""
    num_rows, lens = batch.query_starts.diff().tolist(), batch.seq_lens.tolist()
    if len(set(num_rows)) > 1 or len(set(lens)) > 1:
        return {}
    queries = (
        query.view(len(lens), -1, *query.shape[1:]).transpose(1, 2).contiguous()
    )  # [num_seqs, num_heads, num_rows, head_dim]
    keys, values = (_gathered(pool, batch, lens) for pool in (pool_keys, pool_values))
    return {
        "sdpa": _sdpa(queries, keys, values, batch, window),
        "flex_attention": _flex_attention(queries, keys, values, batch, window),
    }


def _sdpa(queries: Tensor, keys: Tensor, values: Tensor, batch: PagedBatch, window: int | None) -> Way:
    mask = _causal_mask(batch, window)
    bias = _seen(batch, window)[:, None] if mask is None else mask

    def call() -> tuple[Tensor, ...]:
        attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=bias, enable_gqa=True)
        return (_by_token(attended),)

    return call


def _flex_attention(queries: Tensor, keys: Tensor, values: Tensor, batch: PagedBatch, window: int | None) -> Way:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    num_seqs, _, num_rows, _ = queries.shape
    if batch.tree is None:
        ends = batch.key_ends.view(num_seqs, num_rows)

        def is_seen(seq: Tensor, head: Tensor, row: Tensor, place: Tensor) -> Tensor:
            end = ends[seq, row]
            return (place < end) & (place >= end - window) if window else place < end

    else:
        seen = _seen(batch, window)

        def is_seen(seq: Tensor, head: Tensor, row: Tensor, place: Tensor) -> Tensor:
            return seen[seq, row, place]

    mask = create_block_mask(is_seen, num_seqs, None, num_rows, keys.shape[2], device=str(queries.device))
    compiled = torch.compile(flex_attention)

    def call() -> tuple[Tensor, ...]:
        return (_by_token(compiled(queries, keys, values, block_mask=mask, enable_gqa=True)),)

    return call


def _causal_mask(batch: PagedBatch, window: int | None) -> Tensor | None:
    """The mask that SDPA has a flash kernel for, where each sequence's rows are its last tokens."""
    num_rows, seq_len = int(batch.query_starts[1]), int(batch.seq_lens[0])
    last = torch.arange(seq_len - num_rows + 1, seq_len + 1, device=batch.key_ends.device)
    is_last = bool((batch.key_ends.view(-1, num_rows) == last).all())
    return causal_lower_right(num_rows, seq_len) if is_last and batch.tree is None and not window else None


def _gathered(pool: Tensor, batch: PagedBatch, lens: list[int]) -> Tensor:
    """[num_seqs, num_kv_heads, seq_len, head_dim]"""
    each = [pool[slots_of(batch, index, seq_len)] for index, seq_len in enumerate(lens)]
    return torch.stack(each).transpose(1, 2).contiguous()


def _seen(batch: PagedBatch, window: int | None) -> Tensor:
    """bool [num_seqs, num_rows, seq_len]"""
    starts, lens = batch.query_starts.tolist(), batch.seq_lens.tolist()
    rows = [slice(first, last) for first, last in pairwise(starts)]
    return torch.stack([seen_places(batch, at, rows[at], seq_len, window) for at, seq_len in enumerate(lens)])


def _by_token(attended: Tensor) -> Tensor:
    """[num_seqs, num_heads, num_rows, head_dim] as [num_tokens, num_heads, head_dim]."""
    return attended.transpose(1, 2).flatten(0, 1)
