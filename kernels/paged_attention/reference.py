"""Attention over pages written out: the truth that the kernel is compared with."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.paged_attention.batch import TREE_BITS, PagedBatch


def paged_attention(
    query: Tensor, pool_keys: Tensor, pool_values: Tensor, batch: PagedBatch, window: int | None = None
) -> Tensor:
    """As `kernels.paged_attention.paged_attention`, in float32 at least."""
    _, num_heads, head_dim = query.shape
    group = num_heads // pool_keys.shape[1]
    dtype = torch.promote_types(query.dtype, torch.float32)
    out = torch.empty_like(query)
    starts, lens = batch.query_starts.tolist(), batch.seq_lens.tolist()
    for index, seq_len in enumerate(lens):
        rows = slice(starts[index], starts[index + 1])
        slots = slots_of(batch, index, seq_len)
        keys = pool_keys[slots].to(dtype).repeat_interleave(group, dim=1)
        values = pool_values[slots].to(dtype).repeat_interleave(group, dim=1)
        scores = torch.einsum("thd,shd->hts", query[rows].to(dtype), keys) / head_dim**0.5
        scores.masked_fill_(~seen_places(batch, index, rows, seq_len, window), float("-inf"))
        out[rows] = torch.einsum("hts,shd->thd", scores.softmax(dim=-1), values).to(query.dtype)
    return out


def slots_of(batch: PagedBatch, index: int, seq_len: int) -> Tensor:
    places = torch.arange(seq_len, device=batch.page_table.device)
    pages = batch.page_table[index].to(torch.int64)[places // batch.page_size]
    return pages * batch.page_size + places % batch.page_size


def seen_places(batch: PagedBatch, index: int, rows: slice, seq_len: int, window: int | None) -> Tensor:
    """bool [num_rows, seq_len]."""
    places = torch.arange(seq_len, device=batch.key_ends.device)[None]
    ends = batch.key_ends[rows, None]
    seen = places < ends
    if window is not None:
        seen &= places >= ends - window
    if batch.tree is not None and batch.tree_starts is not None:
        behind = places - batch.tree_starts[index]
        held = (behind >= 0) & (behind < batch.tree.shape[1] * TREE_BITS)
        bit = behind.where(held, 0)
        words = batch.tree[rows].gather(1, (bit // TREE_BITS).expand(len(ends), -1))
        seen |= held & ((words >> (bit % TREE_BITS)) & 1).bool()
    return seen
