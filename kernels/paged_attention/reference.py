"""Naive attention over pages, which the kernel is compared with, and torch's SDPA and FlexAttention for benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.paged_attention.batch import PagedBatch


def naive_paged_attention(
    query: Tensor, pool_keys: Tensor, pool_values: Tensor, batch: PagedBatch, window: int | None = None
) -> Tensor:
    """Compute `run_paged_attention` with plain torch operations, in float32 or float64."""
    _, num_heads, head_dim = query.shape
    group = num_heads // pool_keys.shape[1]
    dtype = torch.promote_types(query.dtype, torch.float32)
    out = torch.empty_like(query)
    starts, lens = batch.query_starts.tolist(), batch.seq_lens.tolist()
    for index, seq_len in enumerate(lens):
        rows = slice(starts[index], starts[index + 1])
        slots = get_slots(batch, index, seq_len)
        keys = pool_keys[slots].to(dtype).repeat_interleave(group, dim=1)
        values = pool_values[slots].to(dtype).repeat_interleave(group, dim=1)
        scores = torch.einsum("thd,shd->hts", query[rows].to(dtype), keys) / head_dim**0.5
        scores.masked_fill_(~make_mask(batch, index, rows, seq_len, window), float("-inf"))
        out[rows] = torch.einsum("hts,shd->thd", scores.softmax(dim=-1), values).to(query.dtype)
    return out


def get_slots(batch: PagedBatch, index: int, seq_len: int) -> Tensor:
    """Return the pool slots of a sequence's first `seq_len` positions: int64 [seq_len]."""
    places = torch.arange(seq_len, device=batch.page_table.device)
    pages = batch.page_table[index].to(torch.int64)[places // batch.page_size]
    return pages * batch.page_size + places % batch.page_size


def make_mask(batch: PagedBatch, index: int, rows: slice, seq_len: int, window: int | None) -> Tensor:
    """Return which positions each row sees: bool [num_rows, seq_len]."""
    places = torch.arange(seq_len, device=batch.key_ends.device)[None]
    ends = batch.key_ends[rows, None]
    seen = places < ends
    if window is not None:
        seen &= places >= ends - window
    return seen


Baseline = Callable[[], tuple[Tensor, ...]]


def make_baselines(
    query: Tensor, pool_keys: Tensor, pool_values: Tensor, batch: PagedBatch, window: int | None
) -> Mapping[str, Baseline]:
    """Return SDPA and FlexAttention by name; nothing for sequences of different lengths, which would need padding.

    Both get more than a service could give them: contiguous keys and values, and masks made once.
    """
    num_rows, lens = batch.query_starts.diff().tolist(), batch.seq_lens.tolist()
    if len(set(num_rows)) > 1 or len(set(lens)) > 1:
        return {}
    queries = (
        query.view(len(lens), -1, *query.shape[1:]).transpose(1, 2).contiguous()
    )  # [num_seqs, num_heads, num_rows, head_dim]
    keys, values = (_gather_pages(pool, batch, lens) for pool in (pool_keys, pool_values))
    return {
        "sdpa": _make_sdpa(queries, keys, values, batch, window),
        "flex_attention": _make_flex_attention(queries, keys, values, batch, window),
    }


def _make_sdpa(queries: Tensor, keys: Tensor, values: Tensor, batch: PagedBatch, window: int | None) -> Baseline:
    mask = _find_causal_mask(batch, window)
    bias = _make_batch_mask(batch, window)[:, None] if mask is None else mask

    def call() -> tuple[Tensor, ...]:
        attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=bias, enable_gqa=True)
        return (_flatten_sequences(attended),)

    return call


def _make_flex_attention(
    queries: Tensor, keys: Tensor, values: Tensor, batch: PagedBatch, window: int | None
) -> Baseline:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    num_seqs, _, num_rows, _ = queries.shape
    ends = batch.key_ends.view(num_seqs, num_rows)

    def is_seen(seq: Tensor, head: Tensor, row: Tensor, place: Tensor) -> Tensor:
        end = ends[seq, row]
        return (place < end) & (place >= end - window) if window else place < end

    mask = create_block_mask(is_seen, num_seqs, None, num_rows, keys.shape[2], device=str(queries.device))
    compiled = torch.compile(flex_attention)

    def call() -> tuple[Tensor, ...]:
        return (_flatten_sequences(compiled(queries, keys, values, block_mask=mask, enable_gqa=True)),)

    return call


def _find_causal_mask(batch: PagedBatch, window: int | None) -> Tensor | None:
    """Return the mask for which SDPA has a flash kernel, if each sequence's rows are its last tokens."""
    from torch.nn.attention.bias import causal_lower_right

    num_rows, seq_len = int(batch.query_starts[1]), int(batch.seq_lens[0])
    last = torch.arange(seq_len - num_rows + 1, seq_len + 1, device=batch.key_ends.device)
    is_last = bool((batch.key_ends.view(-1, num_rows) == last).all())
    return causal_lower_right(num_rows, seq_len) if is_last and not window else None


def _gather_pages(pool: Tensor, batch: PagedBatch, lens: list[int]) -> Tensor:
    """Return contiguous keys or values: [num_seqs, num_kv_heads, seq_len, head_dim]."""
    each = [pool[get_slots(batch, index, seq_len)] for index, seq_len in enumerate(lens)]
    return torch.stack(each).transpose(1, 2).contiguous()


def _make_batch_mask(batch: PagedBatch, window: int | None) -> Tensor:
    """Return bool [num_seqs, num_rows, seq_len]."""
    starts, lens = batch.query_starts.tolist(), batch.seq_lens.tolist()
    rows = [slice(first, last) for first, last in pairwise(starts)]
    return torch.stack([make_mask(batch, at, rows[at], seq_len, window) for at, seq_len in enumerate(lens)])


def _flatten_sequences(attended: Tensor) -> Tensor:
    """Reshape [num_seqs, num_heads, num_rows, head_dim] to [num_tokens, num_heads, head_dim]."""
    return attended.transpose(1, 2).flatten(0, 1)
